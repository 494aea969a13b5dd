"""mmtrain: the training core that eats mmdata's stream."""

"""What a build or scan shows a person: histograms, contact sheets, reasons, in one HTML file."""

"""Knowledge questions: statements read out of prose, plans that compute an answer from them, and the filter of answerers."""

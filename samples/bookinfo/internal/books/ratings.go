package books

import "net/http"

// RatingsAnswer is the answer to GET /ratings/{id}.
type RatingsAnswer struct {
	Answer
	ID string `json:"id"`
	// Ratings are stars, one to five, by reviewer.
	Ratings map[string]int `json:"ratings"`
}

// NewRatings returns the ratings service.
func NewRatings(c Config) (http.Handler, error) {
	mux := newMux()
	mux.HandleFunc("GET /ratings/{id}", func(w http.ResponseWriter, r *http.Request) {
		book, ok := find(r.PathValue("id"))
		if !ok {
			c.fail(w, r, http.StatusNotFound, "no such book")
			return
		}
		writeJSON(w, http.StatusOK, RatingsAnswer{
			Answer:  c.answer(r),
			ID:      book.ID,
			Ratings: map[string]int{"Reviewer1": 5, "Reviewer2": 4},
		})
	})
	return mux, nil
}

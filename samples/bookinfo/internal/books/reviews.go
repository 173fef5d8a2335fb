package books

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
)

// colours are the colours of the stars, by version of reviews; a version without one does not call ratings.
var colours = map[string]string{"v1": "", "v2": "black", "v3": "red"}

// Review is a reader's opinion.
type Review struct {
	Reviewer string  `json:"reviewer"`
	Text     string  `json:"text"`
	Rating   *Rating `json:"rating,omitempty"`
}

// Rating is a number of stars; Error is set instead if ratings was not available.
type Rating struct {
	Stars int    `json:"stars,omitempty"`
	Color string `json:"color,omitempty"`
	Error string `json:"error,omitempty"`
}

// ReviewsAnswer is the answer to GET /reviews/{id}.
type ReviewsAnswer struct {
	Answer
	ID      string   `json:"id"`
	Reviews []Review `json:"reviews"`
	// Upstream are the hops after this one.
	Upstream []Hop `json:"upstream,omitempty"`
}

// NewReviews returns the reviews service in the version of c.Server, which must be known.
func NewReviews(c Config) (http.Handler, error) {
	colour, ok := colours[c.Server.Version]
	if !ok {
		return nil, fmt.Errorf("reviews has no version %q; choose one of %v", c.Server.Version, slices.Sorted(maps.Keys(colours)))
	}
	mux := newMux()
	mux.HandleFunc("GET /reviews/{id}", func(w http.ResponseWriter, r *http.Request) {
		book, ok := find(r.PathValue("id"))
		if !ok {
			c.fail(w, r, http.StatusNotFound, "no such book")
			return
		}
		answer := ReviewsAnswer{Answer: c.answer(r), ID: book.ID, Reviews: opinions(book)}
		if colour != "" {
			answer.Upstream = []Hop{c.rate(r, book.ID, colour, answer.Reviews)}
		}
		writeJSON(w, http.StatusOK, answer)
	})
	return mux, nil
}

// rate adds the answer of ratings, or its error, to the reviews, and returns the hop.
func (c Config) rate(r *http.Request, id, colour string, reviews []Review) Hop {
	var ratings RatingsAnswer
	if err := c.Client.get(r.Context(), r.Header, c.URLs.Ratings+"/ratings/"+id, &ratings); err != nil {
		c.Log.Warn("no ratings", "error", err)
		for i := range reviews {
			reviews[i].Rating = &Rating{Error: "Ratings are unavailable at the moment."}
		}
		return Hop{Server: Server{Service: "ratings"}, Error: err.Error()}
	}
	for i := range reviews {
		if stars := ratings.Ratings[reviews[i].Reviewer]; stars > 0 {
			reviews[i].Rating = &Rating{Stars: stars, Color: colour}
		}
	}
	return ratings.hop()
}

// opinions returns the reviews of a book.
func opinions(b Book) []Review {
	return []Review{
		{
			Reviewer: "Reviewer1", Text: fmt.Sprintf(
				"I read %s on a train and missed my stop twice. Two pairs of twins are two pairs more than I expected to care about.", b.Title)},
		{
			Reviewer: "Reviewer2", Text: "Quick, warm and funnier aloud than on the page. Best enjoyed in company, with the parts handed out by " +
				"lot."},
	}
}

package books

import (
	"context"
	"net/http"
	"sync"
)

// Product is an entry of the list of products.
type Product struct {
	ID    string `json:"id"`
	Title string `json:"title"`
}

// ProductsAnswer is the answer to GET /api/v1/products.
type ProductsAnswer struct {
	Answer
	Products []Product `json:"products"`
}

// ProductAnswer is the answer to GET /api/v1/products/{id}.
type ProductAnswer struct {
	Answer
	Details DetailsAnswer `json:"details"`
}

// ProductReviewsAnswer is the answer to GET /api/v1/products/{id}/reviews.
type ProductReviewsAnswer struct {
	Answer
	Reviews ReviewsAnswer `json:"reviews"`
}

// ProductRatingsAnswer is the answer to GET /api/v1/products/{id}/ratings.
type ProductRatingsAnswer struct {
	Answer
	Ratings RatingsAnswer `json:"ratings"`
}

// ChainAnswer is the answer to GET /api/v1/products/{id}/chain: every server behind the page, in the order of the
// calls, with the caller that it saw. The status is 503 if one of them failed.
type ChainAnswer struct {
	Answer
	Hops []Hop `json:"hops"`
}

// productPage is the service that the gateway sends requests to.
type productPage struct {
	Config
}

// NewProductPage returns the productpage service.
func NewProductPage(c Config) (http.Handler, error) {
	p := productPage{c}
	mux := newMux()
	mux.Handle("GET /{$}", http.RedirectHandler("/productpage", http.StatusFound))
	mux.HandleFunc("GET /productpage", p.page)
	mux.Handle("GET /static/", static())
	mux.HandleFunc("POST /login", login)
	mux.HandleFunc("POST /logout", logout)
	mux.HandleFunc("GET /api/v1/products", p.list)
	mux.HandleFunc("GET /api/v1/products/{id}", p.details)
	mux.HandleFunc("GET /api/v1/products/{id}/reviews", p.reviews)
	mux.HandleFunc("GET /api/v1/products/{id}/ratings", p.ratings)
	mux.HandleFunc("GET /api/v1/products/{id}/chain", p.chain)
	return asUser(mux), nil
}

func (p productPage) list(w http.ResponseWriter, r *http.Request) {
	answer := ProductsAnswer{Answer: p.answer(r)}
	for _, b := range stock {
		answer.Products = append(answer.Products, Product{ID: b.ID, Title: b.Title})
	}
	writeJSON(w, http.StatusOK, answer)
}

func (p productPage) details(w http.ResponseWriter, r *http.Request) {
	var out DetailsAnswer
	if p.relay(w, r, p.URLs.Details+"/details/", &out) {
		writeJSON(w, http.StatusOK, ProductAnswer{Answer: p.answer(r), Details: out})
	}
}

func (p productPage) reviews(w http.ResponseWriter, r *http.Request) {
	var out ReviewsAnswer
	if p.relay(w, r, p.URLs.Reviews+"/reviews/", &out) {
		writeJSON(w, http.StatusOK, ProductReviewsAnswer{Answer: p.answer(r), Reviews: out})
	}
}

func (p productPage) ratings(w http.ResponseWriter, r *http.Request) {
	var out RatingsAnswer
	if p.relay(w, r, p.URLs.Ratings+"/ratings/", &out) {
		writeJSON(w, http.StatusOK, ProductRatingsAnswer{Answer: p.answer(r), Ratings: out})
	}
}

// relay decodes another service's answer about the product in the path into out. If that fails, it answers the request
// with the error and returns false.
func (p productPage) relay(w http.ResponseWriter, r *http.Request, base string, out any) bool {
	book, ok := find(r.PathValue("id"))
	if !ok {
		p.fail(w, r, http.StatusNotFound, "no such product")
		return false
	}
	if err := p.Client.get(r.Context(), r.Header, base+book.ID, out); err != nil {
		p.Log.Warn("no answer", "error", err)
		p.fail(w, r, err.Status, err.Reason)
		return false
	}
	return true
}

func (p productPage) chain(w http.ResponseWriter, r *http.Request) {
	book, ok := find(r.PathValue("id"))
	if !ok {
		p.fail(w, r, http.StatusNotFound, "no such product")
		return
	}
	v := p.gather(r.Context(), r, book.ID)
	status := http.StatusOK
	for _, h := range v.hops {
		if h.Error != "" {
			status = http.StatusServiceUnavailable
		}
	}
	writeJSON(w, status, ChainAnswer{Answer: p.answer(r), Hops: v.hops})
}

// view is what the page shows of one book; a part that is not available has an error.
type view struct {
	details    DetailsAnswer
	detailsErr *UpstreamError
	reviews    ReviewsAnswer
	reviewsErr *UpstreamError
	hops       []Hop
}

// gather calls details and reviews, both at once.
func (p productPage) gather(ctx context.Context, r *http.Request, id string) view {
	var v view
	var wg sync.WaitGroup
	wg.Go(func() { v.detailsErr = p.Client.get(ctx, r.Header, p.URLs.Details+"/details/"+id, &v.details) })
	wg.Go(func() { v.reviewsErr = p.Client.get(ctx, r.Header, p.URLs.Reviews+"/reviews/"+id, &v.reviews) })
	wg.Wait()

	v.hops = append(v.hops, p.answer(r).hop())
	for _, part := range []struct {
		service string
		answer  Answer
		err     *UpstreamError
	}{{"details", v.details.Answer, v.detailsErr}, {"reviews", v.reviews.Answer, v.reviewsErr}} {
		if part.err != nil {
			p.Log.Warn("part of the page is missing", "part", part.service, "error", part.err)
			v.hops = append(v.hops, Hop{Server: Server{Service: part.service}, Error: part.err.Reason})
			continue
		}
		v.hops = append(v.hops, part.answer.hop())
	}
	v.hops = append(v.hops, v.reviews.Upstream...)
	return v
}

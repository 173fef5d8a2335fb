// Package books implements the services of the book shop as HTTP handlers: NewProductPage, NewDetails, NewReviews and
// NewRatings. Every JSON answer has the identity of its caller, as the sidecar verified it, so that tests and `fairlead
// demo` can check the mesh. samples/bookinfo/main.go serves one of them.
package books

import (
	"encoding/json"
	"log/slog"
	"net/http"
)

// Server says which Pod answered a request.
type Server struct {
	Service string `json:"service"`
	Version string `json:"version"`
	Pod     string `json:"pod"`
}

// Hop is one server of a request's chain, with the caller that it saw.
type Hop struct {
	Server
	// Caller is the SPIFFE URI that the server's sidecar verified in the TLS handshake; empty if the request came
	// without mutual TLS.
	Caller string `json:"caller"`
	// Error is why the server gave no answer; empty if it did.
	Error string `json:"error,omitempty"`
}

// Answer is the beginning of every JSON answer.
type Answer struct {
	ServedBy Server `json:"served_by"`
	Caller   string `json:"caller"`
}

// Config holds what a service needs.
type Config struct {
	Server Server
	URLs   URLs
	Client *Client
	Log    *slog.Logger
}

// answer returns the beginning of an answer to r.
func (c Config) answer(r *http.Request) Answer {
	return Answer{ServedBy: c.Server, Caller: Caller(r.Header)}
}

// hop returns the answer as a step of a chain.
func (a Answer) hop() Hop { return Hop{Server: a.ServedBy, Caller: a.Caller} }

// problem is the JSON answer of a request that failed.
type problem struct {
	Answer
	Error string `json:"error"`
}

// writeJSON answers with v. It ignores errors of writing: the client has gone.
func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v)
}

// fail answers with an error.
func (c Config) fail(w http.ResponseWriter, r *http.Request, status int, message string) {
	writeJSON(w, status, problem{Answer: c.answer(r), Error: message})
}

// newMux returns a mux that answers /healthz.
func newMux() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("ok\n"))
	})
	return mux
}

// Package books holds the four services of the book shop as HTTP handlers.
package books

import (
	"encoding/json"
	"log/slog"
	"net/http"
)

// Server names who answered a request.
type Server struct {
	Service string `json:"service"`
	Version string `json:"version"`
	Pod     string `json:"pod"`
}

// Hop is one server on a request's way, with the caller that server saw.
type Hop struct {
	Server
	// Caller is the SPIFFE URI that the server's sidecar verified in the TLS handshake; empty if the request came without mutual TLS.
	Caller string `json:"caller"`
	// Error tells why the server gave no answer; empty if it did.
	Error string `json:"error,omitempty"`
}

// Answer is what every JSON answer of the shop begins with.
type Answer struct {
	ServedBy Server `json:"served_by"`
	Caller   string `json:"caller"`
}

// Config is what a service is made of.
type Config struct {
	Server Server
	URLs   URLs
	Client *Client
	Log    *slog.Logger
}

// answer begins an answer to r.
func (c Config) answer(r *http.Request) Answer {
	return Answer{ServedBy: c.Server, Caller: Caller(r.Header)}
}

// hop makes the answer a step of a chain.
func (a Answer) hop() Hop { return Hop{Server: a.ServedBy, Caller: a.Caller} }

// problem is the JSON answer of a request that failed.
type problem struct {
	Answer
	Error string `json:"error"`
}

// writeJSON answers with v. An error while writing means that the client has gone; nobody is left to be told.
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

// newMux is a mux that answers /healthz.
func newMux() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("ok\n"))
	})
	return mux
}

// Command echo is the application of the end-to-end tests: it answers with what it saw and misbehaves on request. It
// listens on 127.0.0.1:$PORT, or on $HOST:$PORT.
//
// "echo call URL" is a job: it sends one request as soon as it starts, prints the answer, and fails unless that is 200.
// If QUIT is set it then sends a POST there, as jobs ask a sidecar to end that nobody else ends.
//
// When it is asked to end, it answers what has begun; ON_TERM=exit ends it at once, and ON_TERM=hang has it do nothing
// any more. /crash ends it without an answer. COUNT_AT=URL has it report each request there, to another echo, before
// its answer; /executed says how many requests that one knows of, and how many of them it was told of more than once.
//
// Query parameters: codes=503,503,200 (the status of the first, second, third attempt that carries the same
// x-request-id; the last one stays), delay=2s (before the answer), headers=k:v,k:v (of the answer).
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Seen is the answer.
type Seen struct {
	Pod      string              `json:"pod"`
	Version  string              `json:"version"`
	Method   string              `json:"method"`
	URI      string              `json:"uri"`
	Host     string              `json:"host"`
	Headers  map[string][]string `json:"headers"`
	BodySize int64               `json:"bodySize"`
	// Attempt counts the requests with this x-request-id, from 1.
	Attempt int `json:"attempt"`
	// Active counts the requests that have no answer yet, this one included.
	Active int64 `json:"active"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "echo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	if len(os.Args) == 3 && os.Args[1] == "call" {
		err := call(ctx, http.MethodGet, os.Args[2])
		if quit := os.Getenv("QUIT"); quit != "" {
			err = errors.Join(err, call(ctx, http.MethodPost, quit))
		}
		return err
	}
	version := ""
	if len(os.Args) > 1 {
		version = os.Args[1]
	}
	host := os.Getenv("HOST")
	if host == "" {
		host = "127.0.0.1"
	}
	e := &echo{pod: os.Getenv("POD_NAME"), version: version, countAt: os.Getenv("COUNT_AT"), attempts: map[string]int{}}
	srv := &http.Server{
		Addr:    net.JoinHostPort(host, os.Getenv("PORT")),
		Handler: e,
		// Longer than Envoy keeps a connection that it has opened and not yet used: a request may be under way on one
		// that the server closes.
		ReadHeaderTimeout: 2 * time.Hour,
	}
	failed := make(chan error, 1)
	go func() { failed <- srv.ListenAndServe() }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	switch os.Getenv("ON_TERM") {
	case "exit":
		os.Exit(0)
	case "hang":
		e.hanging.Store(true)
		return <-failed
	}
	grace, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return errors.Join(srv.Shutdown(grace), srv.Close())
}

// call sends one request and prints the answer.
func call(ctx context.Context, method, url string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	fmt.Printf("%s %s: %s %s\n", method, url, resp.Status, body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, resp.Status)
	}
	return err
}

// echo counts attempts by request id; tests send few enough that it may remember them all.
type echo struct {
	pod, version, countAt string
	active                atomic.Int64
	// hanging has requests wait for ever.
	hanging atomic.Bool

	mu       sync.Mutex
	attempts map[string]int
}

// ServeHTTP implements http.Handler.
func (e *echo) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if e.hanging.Load() {
		select {}
	}
	switch {
	case r.URL.Path == "/healthz":
		return
	case r.URL.Path == "/executed":
		e.executed(w)
		return
	case strings.HasSuffix(r.URL.Path, "/crash"):
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // which the first process of a container does not get
		os.Exit(1)
	}
	e.active.Add(1)
	defer e.active.Add(-1)
	size, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	query := r.URL.Query()
	attempt := e.attempt(r.Header.Get("X-Request-Id"))
	if e.countAt != "" {
		if err := e.count(r.Context(), r.Header.Get("X-Request-Id")); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	status, err := statusOf(query.Get("codes"), attempt)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if s := query.Get("delay"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		select {
		case <-time.After(d):
		case <-r.Context().Done():
			return
		}
	}
	for pair := range strings.SplitSeq(query.Get("headers"), ",") {
		if k, v, ok := strings.Cut(pair, ":"); ok {
			w.Header().Set(k, v)
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(Seen{
		Pod: e.pod, Version: e.version, Method: r.Method, URI: r.RequestURI, Host: r.Host, Headers: r.Header, BodySize: size, Attempt: attempt,
		Active: e.active.Load(),
	})
}

// count reports a request to the echo that counts.
func (e *echo) count(ctx context.Context, id string) error {
	req, err := http.NewRequestWithContext(context.WithoutCancel(ctx), http.MethodGet, e.countAt, http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("X-Request-Id", id)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", e.countAt, resp.Status)
	}
	return err
}

// Executed is the answer to /executed.
type Executed struct {
	Requests int `json:"requests"`
	Twice    int `json:"twice"`
}

func (e *echo) executed(w http.ResponseWriter) {
	e.mu.Lock()
	defer e.mu.Unlock()
	sum := Executed{Requests: len(e.attempts)}
	for _, n := range e.attempts {
		if n > 1 {
			sum.Twice++
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(sum)
}

func (e *echo) attempt(id string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.attempts[id]++
	return e.attempts[id]
}

// statusOf is the status of an attempt in a list like "503,503,200"; an empty list means 200.
func statusOf(codes string, attempt int) (int, error) {
	if codes == "" {
		return http.StatusOK, nil
	}
	list := strings.Split(codes, ",")
	code, err := strconv.Atoi(list[min(attempt, len(list))-1])
	if err != nil || code < 100 || code > 599 {
		return 0, fmt.Errorf("codes %q: want a list of HTTP statuses", codes)
	}
	return code, nil
}

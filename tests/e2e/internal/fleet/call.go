package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"fairlead.dev/pkg/testkit"
)

// Seen is what the echo application saw of a request.
type Seen struct {
	Pod      string      `json:"pod"`
	Version  string      `json:"version"`
	Method   string      `json:"method"`
	URI      string      `json:"uri"`
	Host     string      `json:"host"`
	Headers  http.Header `json:"headers"`
	BodySize int64       `json:"bodySize"`
	Attempt  int         `json:"attempt"`
}

// Answer is an answer that somebody got.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
	// Seen is set if the echo application answered.
	Seen Seen
	// Took is how long it took.
	Took time.Duration
}

// Request is what to ask for. The zero values are a GET without headers.
type Request struct {
	Method string
	URL    string
	Header http.Header
	Body   string
}

// Client sends requests the way an application does. It is safe for concurrent use.
type Client struct {
	http *http.Client
}

// newClient sends through proxy; nil means directly. It follows no redirects.
func newClient(proxy *url.URL, keepAlive bool) *Client {
	t := &http.Transport{
		MaxIdleConnsPerHost: 64,
		DisableKeepAlives:   !keepAlive,
	}
	if proxy != nil {
		t.Proxy = http.ProxyURL(proxy)
	}
	return &Client{http: &http.Client{
		Transport:     t,
		Timeout:       testkit.Patience,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Direct is a client that passes every sidecar by, as one outside the mesh would.
func Direct() *Client { return newClient(nil, false) }

// Do sends the request.
func (c *Client) Do(ctx context.Context, r Request) (Answer, error) {
	req, err := http.NewRequestWithContext(ctx, r.Method, r.URL, bytes.NewBufferString(r.Body))
	if err != nil {
		return Answer{}, err
	}
	for k, v := range r.Header {
		req.Header[http.CanonicalHeaderKey(k)] = v
	}
	if h := r.Header.Get("Host"); h != "" {
		req.Host = h
	}
	start := time.Now()
	res, err := c.http.Do(req)
	if err != nil {
		return Answer{}, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return Answer{}, fmt.Errorf("read answer: %w", err)
	}
	a := Answer{Status: res.StatusCode, Header: res.Header, Body: body, Took: time.Since(start)}
	_ = json.Unmarshal(body, &a.Seen) // others than echo answer as well
	return a, nil
}

// Get sends a GET.
func (c *Client) Get(ctx context.Context, url string) (Answer, error) {
	return c.Do(ctx, Request{URL: url})
}

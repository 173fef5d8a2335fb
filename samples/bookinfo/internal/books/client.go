package books

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

// maxAnswer bounds what is read of another service's answer.
const maxAnswer = 1 << 20

// handedOn are the headers that each service passes on to the services that it calls: tracing needs them to join spans,
// and rules on end-user need them after the first hop.
var handedOn = []string{
	"X-Request-Id",
	"B3", "X-B3-Traceid", "X-B3-Spanid", "X-B3-Parentspanid", "X-B3-Sampled", "X-B3-Flags",
	"Traceparent", "Tracestate", "Baggage",
	"X-Ot-Span-Context", "X-Cloud-Trace-Context", "Grpc-Trace-Bin",
	"End-User",
}

// URLs are the base URLs of the services.
type URLs struct {
	Details, Reviews, Ratings string
}

// DefaultURLs returns the names of the Services.
func DefaultURLs() *URLs {
	return &URLs{Details: "http://details:9080", Reviews: "http://reviews:9080", Ratings: "http://ratings:9080"}
}

// Ref returns the field of a service's URL; nil for a service that no other calls.
func (u *URLs) Ref(service string) *string {
	switch service {
	case "details":
		return &u.Details
	case "reviews":
		return &u.Reviews
	case "ratings":
		return &u.Ratings
	}
	return nil
}

// Client calls other services.
type Client struct {
	http *http.Client
}

// NewClient returns a client whose calls end after timeout. proxy chooses the proxy of a call as in http.Transport; nil
// means none.
func NewClient(proxy func(*http.Request) (*url.URL, error), timeout time.Duration) *Client {
	return &Client{http: &http.Client{
		Timeout: timeout,
		Transport: &http.Transport{
			Proxy:               proxy,
			DialContext:         (&net.Dialer{Timeout: 2 * time.Second}).DialContext,
			MaxIdleConnsPerHost: 32,
			IdleConnTimeout:     30 * time.Second,
		},
		// A redirect is returned as an answer.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// UpstreamError says that another service has sent no usable answer.
type UpstreamError struct {
	// Status is the answer's HTTP status, 503 if there was no answer.
	Status int
	// Reason is a text for people.
	Reason string
}

// Error implements error.
func (e *UpstreamError) Error() string { return e.Reason }

// get requests url and decodes the JSON answer into out. It passes the headers of handedOn on from the incoming
// request. The error is always an *UpstreamError.
func (c *Client) get(ctx context.Context, incoming http.Header, url string, out any) *UpstreamError {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return &UpstreamError{Status: http.StatusServiceUnavailable, Reason: err.Error()}
	}
	for _, name := range handedOn {
		if values := incoming.Values(name); len(values) > 0 {
			req.Header[name] = values
		}
	}
	res, err := c.http.Do(req)
	if err != nil {
		return &UpstreamError{Status: http.StatusServiceUnavailable, Reason: err.Error()}
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return &UpstreamError{Status: http.StatusServiceUnavailable, Reason: fmt.Sprintf("read the answer of %s: %v", url, err)}
	}
	if res.StatusCode != http.StatusOK {
		return &UpstreamError{Status: res.StatusCode, Reason: fmt.Sprintf("%s answered %d: %s", url, res.StatusCode, excerpt(body))}
	}
	if err := json.Unmarshal(body, out); err != nil {
		return &UpstreamError{Status: http.StatusBadGateway, Reason: fmt.Sprintf("%s gave no JSON: %v", url, err)}
	}
	return nil
}

// excerpt returns the beginning of an error's body.
func excerpt(body []byte) string {
	const limit = 200
	var p problem
	if json.Unmarshal(body, &p) == nil && p.Error != "" {
		body = []byte(p.Error)
	}
	if len(body) > limit {
		return string(body[:limit]) + "..."
	}
	return string(body)
}

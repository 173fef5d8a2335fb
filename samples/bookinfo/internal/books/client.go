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

// maxAnswer limits what is read of another service's answer.
const maxAnswer = 1 << 20

// handedOn are the headers that every service hands on to the ones it calls: without them the spans of one request cannot be joined, and rules on
// end-user match at the first hop only.
var handedOn = []string{
	"X-Request-Id",
	"B3", "X-B3-Traceid", "X-B3-Spanid", "X-B3-Parentspanid", "X-B3-Sampled", "X-B3-Flags",
	"Traceparent", "Tracestate", "Baggage",
	"X-Ot-Span-Context", "X-Cloud-Trace-Context", "Grpc-Trace-Bin",
	"End-User",
}

// URLs tell where the services are.
type URLs struct {
	Details, Reviews, Ratings string
}

// DefaultURLs are the names of the Services.
func DefaultURLs() *URLs {
	return &URLs{Details: "http://details:9080", Reviews: "http://reviews:9080", Ratings: "http://ratings:9080"}
}

// Ref is the URL of the named service, to be set; nil for a service that nobody calls.
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

// NewClient returns a client whose calls end after timeout. Which proxy a call goes through is what proxy says, as in http.Transport; nil
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
		// A redirect is an answer like any other; the mesh may rewrite, it does not send this client elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// UpstreamError is an answer of another service that is no use.
type UpstreamError struct {
	// Status is the answer's HTTP status, 503 if there was no answer.
	Status int
	// Reason is for people.
	Reason string
}

// Error implements error.
func (e *UpstreamError) Error() string { return e.Reason }

// get decodes the JSON answer of a GET of url into out. Headers that belong to the whole request are taken over from the incoming one. The
// error is always an *UpstreamError.
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

// excerpt is the beginning of an error's body.
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

package envoy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"fairlead.dev/services/node-agent/internal/statedir"
)

// maxAdminBody bounds the part of an answer that is read into memory.
const maxAdminBody = 4 << 20

// Admin is a client of Envoy's admin interface. It is safe for concurrent use.
type Admin struct {
	client *http.Client
	host   string
}

// NewClient makes a client of a port, host:port.
func NewClient(host string) *Admin { return &Admin{client: &http.Client{}, host: host} }

// NewAdmin makes a client of the socket at path. It connects on the first request.
func NewAdmin(path string) *Admin {
	return &Admin{host: "envoy", client: &http.Client{
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return statedir.Dial(ctx, path)
			},
			MaxIdleConns:    2,
			IdleConnTimeout: 30 * time.Second,
		},
	}}
}

// Request sends a request without a body and returns the body of the answer, which the caller closes. A status other
// than 200 is an error.
func (a *Admin) Request(ctx context.Context, method, path string) (io.ReadCloser, error) {
	return a.RequestWith(ctx, method, path, "")
}

// RequestWith is Request with a body.
func (a *Admin) RequestWith(ctx context.Context, method, path, body string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+a.host+"/"+strings.TrimPrefix(path, "/"), strings.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("admin request: %w", err)
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("admin interface: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
		resp.Body.Close()
		return nil, fmt.Errorf("admin interface: %s %s: %s: %s", method, path, resp.Status, strings.TrimSpace(string(body)))
	}
	return resp.Body, nil
}

// Post sends a POST request and discards the answer.
func (a *Admin) Post(ctx context.Context, path string) error {
	body, err := a.Request(ctx, http.MethodPost, path)
	if err != nil {
		return err
	}
	defer body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(body, maxAdminBody))
	return err
}

// Stats reads the numeric stats whose names match the regular expression.
func (a *Admin) Stats(ctx context.Context, filter string) (map[string]uint64, error) {
	body, err := a.Request(ctx, http.MethodGet, "/stats?filter="+url.QueryEscape(filter))
	if err != nil {
		return nil, err
	}
	defer body.Close()
	data, err := io.ReadAll(io.LimitReader(body, maxAdminBody))
	if err != nil {
		return nil, fmt.Errorf("admin interface: stats: %w", err)
	}
	return parseStats(string(data)), nil
}

// parseStats parses lines of the form "name: value" and skips values that are not numbers.
func parseStats(text string) map[string]uint64 {
	out := map[string]uint64{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if !ok {
			continue
		}
		if n, err := strconv.ParseUint(value, 10, 64); err == nil {
			out[name] = n
		}
	}
	return out
}

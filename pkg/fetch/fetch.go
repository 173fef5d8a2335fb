// Package fetch guards connections to addresses that configuration names: Addresses says where a connection may go, and
// Client makes bounded HTTP requests by it. config-watcher connects to remote clusters so, and node-agent fetches trust
// bundles and tokens.
package fetch

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"fairlead.dev/pkg/fileio"
)

// Defaults of a Config, and the bound of redirects.
const (
	DefaultTimeout  = 10 * time.Second
	DefaultMaxBytes = 1 << 20
	maxRedirects    = 3
)

// Config of a Client. The zero value fetches by HTTPS from any address that Addresses admits.
type Config struct {
	Addresses Addresses
	// Plain allows URLs of the scheme http, but no redirect from https to one.
	Plain bool
	// Roots verify servers; nil are those of the operating system.
	Roots *x509.CertPool
	// Timeout bounds a whole request, MaxBytes the body of an answer.
	Timeout  time.Duration
	MaxBytes int64
}

// Client makes HTTP requests. It follows few redirects, each of which must pass the same checks, and uses no proxy. It
// is safe for concurrent use.
type Client struct {
	cfg  Config
	http *http.Client
}

// Answer is an answer of any status.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// New makes a Client.
func New(c Config) *Client {
	if c.Timeout <= 0 {
		c.Timeout = DefaultTimeout
	}
	if c.MaxBytes <= 0 {
		c.MaxBytes = DefaultMaxBytes
	}
	client := &Client{cfg: c}
	client.http = &http.Client{
		Timeout: c.Timeout,
		Transport: &http.Transport{
			DialContext: c.Addresses.Dialer().DialContext, TLSHandshakeTimeout: DialTimeout,
			TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: c.Roots}, ForceAttemptHTTP2: true,
			MaxResponseHeaderBytes: 64 << 10, MaxIdleConns: 4, IdleConnTimeout: 30 * time.Second,
		},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if len(via) > maxRedirects {
				return fmt.Errorf("more than %d redirects", maxRedirects)
			}
			if r.URL.Scheme == "http" && via[len(via)-1].URL.Scheme == "https" {
				return fmt.Errorf("redirect from https to URL %q: want https: %w", r.URL.Redacted(), ErrForbidden)
			}
			if r.URL.Host != via[0].URL.Host {
				for _, secret := range []string{"Authorization", "Metadata-Flavor"} {
					r.Header.Del(secret)
				}
			}
			return client.Check(r.URL)
		},
	}
	return client
}

// Check returns why a URL is not fetched; nil if it may be, as far as its text says.
func (c *Client) Check(u *url.URL) error {
	switch {
	case u.Scheme != "https" && (u.Scheme != "http" || !c.cfg.Plain):
		return fmt.Errorf("URL %q: want https: %w", u.Redacted(), ErrForbidden)
	case u.Host == "":
		return fmt.Errorf("URL %q: no host: %w", u.Redacted(), ErrForbidden)
	case u.User != nil:
		return fmt.Errorf("URL %q: has a user: %w", u.Redacted(), ErrForbidden)
	default:
		return nil
	}
}

// Do makes a request and reads the whole answer, of any status.
func (c *Client) Do(r *http.Request) (Answer, error) {
	if err := c.Check(r.URL); err != nil {
		return Answer{}, err
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return Answer{}, err
	}
	defer resp.Body.Close()
	body, err := fileio.ReadAll(resp.Body, c.cfg.MaxBytes)
	if err != nil {
		return Answer{}, fmt.Errorf("answer of %s: %w", r.URL.Redacted(), err)
	}
	return Answer{resp.StatusCode, resp.Header, body}, nil
}

// Get fetches a URL. Any status but 200 is an error.
func (c *Client) Get(ctx context.Context, address string, header http.Header) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	for name, values := range header {
		r.Header[name] = values
	}
	a, err := c.Do(r)
	if err != nil {
		return nil, err
	}
	if a.Status != http.StatusOK {
		return nil, fmt.Errorf("%s answers %d: %q", r.URL.Redacted(), a.Status, bytes.TrimSpace(a.Body[:min(len(a.Body), 200)]))
	}
	return a.Body, nil
}

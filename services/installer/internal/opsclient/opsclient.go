// Package opsclient reads JSON pages of the operations ports of Fairlead's services (pkg/ops serves them), and posts
// orders to them. Get is called by the commands of cli that ask xds-servers, and by local for the table of `fairlead
// up`; Post by package caops.
package opsclient

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"fairlead.dev/pkg/rpc"
)

// Timeout bounds one Get or Post.
const Timeout = 5 * time.Second

// maxAnswerBytes and maxFailureBytes bound what Get reads of an answer, and of one that says why there is none.
const (
	maxAnswerBytes  = 256 << 20
	maxFailureBytes = 64 << 10
)

// StatusError is an answer with another status than 200.
type StatusError struct {
	address string
	Code    int
	message string
}

// Error implements error with the service's own message, if it sent one.
func (e *StatusError) Error() string {
	if e.message != "" {
		return e.message
	}
	return fmt.Sprintf("%s answered %d %s", e.address, e.Code, http.StatusText(e.Code))
}

// Get decodes a page of the operations port at address into out. tokenFile holds an administrator's JWT, which /debug/
// asks for. An answer other than 200 is a *StatusError.
func Get(ctx context.Context, address, tokenFile, path string, query url.Values, out any) error {
	return New(address, tokenFile).Get(ctx, path, query, out)
}

// Client asks one operations port.
type Client struct {
	// Address is host:port, and the name of the service in errors.
	Address string
	// Token returns an administrator's JWT; nil sends none.
	Token func(ctx context.Context) (string, error)
	// HTTP sends the requests; nil means http.DefaultClient.
	HTTP *http.Client
}

// New returns a client of the operations port at address; tokenFile holds an administrator's JWT.
func New(address, tokenFile string) *Client {
	return &Client{Address: address, Token: func(context.Context) (string, error) { return rpc.ReadToken(tokenFile) }}
}

// Get decodes a page into out. An answer other than 200 is a *StatusError.
func (c *Client) Get(ctx context.Context, path string, query url.Values, out any) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	body, err := c.open(ctx, http.MethodGet, path, query, nil)
	if err != nil {
		return err
	}
	defer body.Close()
	return json.NewDecoder(io.LimitReader(body, maxAnswerBytes)).Decode(out)
}

// Post sends in to a page as JSON, once, and decodes the answer into out. An answer other than 200 is a *StatusError;
// after any other error it is not known whether the service has done what in says.
func (c *Client) Post(ctx context.Context, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	text, err := json.Marshal(in)
	if err != nil {
		return err
	}
	body, err := c.open(ctx, http.MethodPost, path, nil, text)
	if err != nil {
		return err
	}
	defer body.Close()
	return json.NewDecoder(io.LimitReader(body, maxAnswerBytes)).Decode(out)
}

// Text returns at most limit bytes of a page, which may have a query, and whether it has more.
func (c *Client) Text(ctx context.Context, page string, limit int64) (text []byte, more bool, err error) {
	path, query, _ := strings.Cut(page, "?")
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, false, err
	}
	body, err := c.open(ctx, http.MethodGet, path, values, nil)
	if err != nil {
		return nil, false, err
	}
	defer body.Close()
	text, err = io.ReadAll(io.LimitReader(body, limit+1))
	if int64(len(text)) > limit {
		return text[:limit], true, err
	}
	return text, false, err
}

// open returns the body of an answer 200. in is the body of the request, JSON, nil for none.
func (c *Client) open(ctx context.Context, method, path string, query url.Values, in []byte) (io.ReadCloser, error) {
	page := url.URL{Scheme: "http", Host: c.Address, Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, page.String(), bytes.NewReader(in))
	if err != nil {
		return nil, err
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.Token != nil {
		token, err := c.Token(ctx)
		if err != nil {
			return nil, err
		}
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := cmp.Or(c.HTTP, http.DefaultClient).Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode == http.StatusOK {
		return res.Body, nil
	}
	defer res.Body.Close()
	var failure struct {
		Error string `json:"error"`
	}
	// An answer that is no JSON leaves the status as the message.
	_ = json.NewDecoder(io.LimitReader(res.Body, maxFailureBytes)).Decode(&failure)
	return nil, &StatusError{c.Address, res.StatusCode, failure.Error}
}

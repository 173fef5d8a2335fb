// Package kube is the little of Kubernetes' API that "node-agent cni" needs: Pods of its node, and their events. It is
// not client-go, which would make every sidecar's program larger by half (ADR 71).
package kube

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"fairlead.dev/pkg/fileio"
)

// Limits.
const (
	// maxFile bounds the token and the certificates, in bytes.
	maxFile = 1 << 20
	// maxAnswer bounds an answer: a list of Pods of one node.
	maxAnswer = 64 << 20
	// answersWithin bounds a request that is no watch.
	answersWithin = 10 * time.Second
	// watchFor is how long one watch lasts; the API server ends it then.
	watchFor = 5 * time.Minute
)

// Config says where the API is.
type Config struct {
	// Address is its host and port.
	Address string
	// Dir has the files token and ca.crt, as Kubernetes mounts them.
	Dir string
}

// Client calls the API. It reads the token for each request, since the kubelet replaces the file. It is safe for
// concurrent use.
type Client struct {
	config Config
	http   *http.Client
}

// New makes a Client. It reads the certificates.
func New(c Config) (*Client, error) {
	if c.Address == "" {
		return nil, errors.New("the address of Kubernetes' API is unknown: run this in a Pod, which has KUBERNETES_SERVICE_HOST and " +
			"KUBERNETES_SERVICE_PORT, or give --kubernetes-address")
	}
	pem, err := fileio.Read(filepath.Join(c.Dir, "ca.crt"), maxFile)
	if err != nil {
		return nil, fmt.Errorf("certificates of Kubernetes' API: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("certificates of Kubernetes' API: %s has none", filepath.Join(c.Dir, "ca.crt"))
	}
	return &Client{config: c, http: &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
		DialContext: (&net.Dialer{Timeout: answersWithin}).DialContext, TLSHandshakeTimeout: answersWithin, ResponseHeaderTimeout: answersWithin,
	}}}, nil
}

// StatusError is an error that the API answers with.
type StatusError struct {
	Code    int
	Message string
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("Kubernetes' API answers %d: %s", e.Code, e.Message)
}

// Gone reports whether err says that the object is not there.
func Gone(err error) bool { return hasCode(err, http.StatusNotFound) }

// Denied reports whether err says that this client may not do it (any more).
func Denied(err error) bool {
	return hasCode(err, http.StatusForbidden) || hasCode(err, http.StatusUnauthorized)
}

func hasCode(err error, code int) bool {
	status, ok := errors.AsType[*StatusError](err)
	return ok && status.Code == code
}

// send sends a request. The caller closes the body, unless there is an error.
func (c *Client) send(ctx context.Context, method, path string, query url.Values, contentType string, body any) (io.ReadCloser, error) {
	token, err := fileio.Read(filepath.Join(c.config.Dir, "token"), maxFile)
	if err != nil {
		return nil, fmt.Errorf("token for Kubernetes' API: %w", err)
	}
	var content io.Reader = http.NoBody
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(raw)
	}
	u := url.URL{Scheme: "https", Host: c.config.Address, Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), content)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "fairlead-node-agent-cni")
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("Kubernetes' API: %w", err)
	}
	if resp.StatusCode/100 == 2 {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	var status struct{ Message string }
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if json.Unmarshal(raw, &status) != nil || status.Message == "" {
		status.Message = resp.Status
	}
	return nil, &StatusError{Code: resp.StatusCode, Message: status.Message}
}

// Do sends a request with an object, which may be nil, and decodes the answer into out, which may be nil.
func (c *Client) Do(ctx context.Context, method, path string, query url.Values, contentType string, body, out any) error {
	ctx, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	answer, err := c.send(ctx, method, path, query, contentType, body)
	if err != nil {
		return err
	}
	defer answer.Close()
	if out == nil {
		_, err = io.Copy(io.Discard, io.LimitReader(answer, maxAnswer))
		return err
	}
	if err := json.NewDecoder(io.LimitReader(answer, maxAnswer)).Decode(out); err != nil {
		return fmt.Errorf("answer of Kubernetes' API to %s %s: %w", method, path, err)
	}
	return nil
}

package ondemand

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"

	"fairlead.dev/tests/e2e/internal/hostmesh"
)

const (
	// bound is how long any request may take, whatever becomes of it.
	bound = 30 * time.Second
	// takesEffect is how long a change of configuration may take until requests show it.
	takesEffect = testkit.Patience
)

var errHangs = errors.New("no answer in time")

// request is what to ask for. The zero values are a GET without headers on a connection of its own.
type request struct {
	// address is where the application connects to, authority what it writes into the request's head.
	address, authority string
	header             http.Header
	body               []byte
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	seen   seen
	took   time.Duration
}

// caller is the identity that the far proxy has verified; empty for none.
func (a answer) caller() string {
	if m := regexp.MustCompile(`URI=([^;,]+)`).FindStringSubmatch(a.seen.XFCC); m != nil {
		return m[1]
	}
	return ""
}

// httpClient sends all requests to one address.
func httpClient(from *hostmesh.Host, address string, keepAlive bool) *http.Client {
	return &http.Client{Timeout: bound,
		Transport: &http.Transport{DisableKeepAlives: !keepAlive, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return from.Dial(ctx, address)
		}}}
}

// call sends a request. Its error is errHangs if the request was not answered in time.
func call(from *hostmesh.Host, r request) (answer, error) {
	return callOver(httpClient(from, r.address, false), r)
}

func callOver(c *http.Client, r request) (answer, error) {
	method := http.MethodGet
	if r.body != nil {
		method = http.MethodPost
	}
	req, err := http.NewRequest(method, "http://"+r.address+"/", bytes.NewReader(r.body))
	if err != nil {
		return answer{}, err
	}
	req.Host = r.authority
	for k, v := range r.header {
		req.Header[k] = v
	}
	start := time.Now()
	resp, err := c.Do(req)
	a := answer{took: time.Since(start)}
	if errors.Is(err, context.DeadlineExceeded) || os.IsTimeout(err) {
		return a, fmt.Errorf("%s at %s: %w", r.authority, r.address, errHangs)
	}
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return a, err
	}
	a.took, a.status, a.header = time.Since(start), resp.StatusCode, resp.Header
	_ = json.Unmarshal(body, &a.seen) // the proxy's own answers are no JSON
	return a, nil
}

// ok is call where status 200 is expected, from a server of the mesh over mTLS.
func (f *fixture) ok(t *testing.T, r request) answer {
	t.Helper()
	a, err := call(f.client.Host, r)
	if err != nil {
		t.Fatalf("%s at %s: %v", r.authority, r.address, err)
	}
	if a.status != http.StatusOK || a.caller() != client || a.seen.Host != r.authority {
		t.Fatalf("%s at %s: status %d, the application saw host %q and caller %q", r.authority, r.address, a.status, a.seen.Host, a.caller())
	}
	return a
}

// eventually repeats a request until its answer is as expected. Every single one must be answered in time.
func (f *fixture) eventually(t *testing.T, r request, want func(answer) error) {
	t.Helper()
	testkit.Eventually(t, takesEffect, func() error {
		a, err := call(f.client.Host, r)
		if errors.Is(err, errHangs) {
			t.Fatal(err)
		}
		if err != nil {
			return err
		}
		if err := want(a); err != nil {
			return fmt.Errorf("%s at %s: %w", r.authority, r.address, err)
		}
		return nil
	})
}

// from is the condition that a request was answered by one of the applications.
func from(pods ...string) func(answer) error {
	return func(a answer) error {
		if a.status != http.StatusOK || !slices.Contains(pods, a.seen.Pod) {
			return fmt.Errorf("status %d from %q, want it from %q", a.status, a.seen.Pod, pods)
		}
		return nil
	}
}

// status is the condition that the proxy itself answered.
func status(code int) func(answer) error {
	return func(a answer) error {
		if a.status != code {
			return fmt.Errorf("status %d, want %d", a.status, code)
		}
		return nil
	}
}

// talk opens a TCP connection, sends a message, which may be empty, and wants an answer.
func (f *fixture) talk(t *testing.T, address, message string, want ...string) time.Duration {
	t.Helper()
	start := time.Now()
	got, err := f.client.Host.Say(address, message)
	if err != nil || !slices.Contains(want, got) {
		t.Errorf("TCP to %s was answered with %q, %v; want one of %q", address, got, err, want)
	}
	return time.Since(start)
}

func median(list []time.Duration) time.Duration {
	list = slices.Clone(list)
	slices.Sort(list)
	return list[len(list)/2]
}

// isTimeout reports whether somebody has waited in vain.
func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, os.ErrDeadlineExceeded)
}

// counting counts the connections that are made.
func counting(dial func(context.Context, string, string) (net.Conn, error), n *int) func(context.Context, string, string) (net.Conn,
	error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		*n++
		return dial(ctx, network, address)
	}
}

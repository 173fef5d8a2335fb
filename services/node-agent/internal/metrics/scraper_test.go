package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
)

// from scrapes from an address of this machine, with a small buffer of the socket unless buffer is 0.
func from(t *testing.T, address string, buffer int) *http.Client {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	transport := &http.Transport{DisableCompression: true, DialContext: func(ctx context.Context, network, to string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, to)
		if err == nil && buffer > 0 {
			err = conn.(*net.TCPConn).SetReadBuffer(buffer)
		}
		return conn, err
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// TestSlowReadersDoNotKeepOthersOut: scrapers that do not read, from as many addresses as all places need, lose them to
// one that does.
func TestSlowReadersDoNotKeepOthersOut(t *testing.T) {
	r := newRig(t)
	r.envoy.text = strings.Repeat("envoy_some_metric{label=\"value\"} 1\n", 1<<19) // more than sockets buffer
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	running := func() int {
		r.scrapers.mu.Lock()
		defer r.scrapers.mu.Unlock()
		return len(r.scrapers.running)
	}
	for i := range maxScrapes {
		resp, err := from(t, fmt.Sprintf("127.0.1.%d", 1+i/maxPerAddress), 4<<10).Get(s.URL)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatal(resp, err)
		}
		t.Cleanup(func() { _ = resp.Body.Close() })
	}
	if n := running(); n != maxScrapes {
		t.Fatalf("%d scrapes run", n)
	}
	prometheus := from(t, "127.0.1.9", 0)
	testkit.Eventually(t, testkit.Patience, func() error {
		resp, err := prometheus.Get(s.URL)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s %.100s %w", resp.Status, body, err)
		}
		if len(body) < len(r.envoy.text) {
			t.Errorf("%d bytes of %d", len(body), len(r.envoy.text))
		}
		return nil
	})
	// The others end by themselves.
	testkit.Eventually(t, testkit.Patience, func() error {
		if running() > 0 {
			return errors.New("a scrape is left")
		}
		return nil
	})
}

package ops_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/ops"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
)

// Probes are answered while a client holds 2,000 connections open, in any state.
func TestProbesAreAnsweredBesideSilentConnections(t *testing.T) {
	ca := testkit.PKI(t)
	for name, tc := range map[string]struct {
		say string
		tls bool
		// answers is whether the server answers what was sent.
		answers bool
	}{
		"silent":                 {},
		"silent, TLS":            {tls: true},
		"after a request":        {say: "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n", answers: true},
		"half a header":          {say: "GET /livez HTTP/1.1\r\nHost: x\r\nX-Slow: "},
		"slow body":              {say: "GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nx"},
		"slow body, not allowed": {say: "POST /debug/version HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nx"},
	} {
		t.Run(name, func(t *testing.T) {
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			f := start(t, func(c *ops.Config) {
				if tc.tls {
					c.TLS = tlsconf.Server(ca.NewSVID("istio-system", "ca"), tls.VerifyClientCertIfGiven)
				}
			})
			address := strings.TrimPrefix(f.url, "http://")
			if tc.tls {
				f.url = "https://" + address
				client.Transport = &http.Transport{DisableKeepAlives: true,
					TLSClientConfig: tlsconf.Client(ca.RootsOnly(), ca.ID("istio-system", "ca"))}
			}
			for i := range 2000 {
				conn, err := net.Dial("tcp", address)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = conn.Close() })
				_, _ = io.WriteString(conn, tc.say)
				if tc.answers && i < 300 { // reading all would take long
					_ = conn.SetReadDeadline(time.Now().Add(testkit.Patience))
					_, _ = conn.Read(make([]byte, 1))
				}
				if i%400 != 399 {
					continue
				}
				for _, path := range []string{"/livez", "/readyz"} {
					testkit.Quick(t, time.Second, func() time.Duration {
						began := time.Now()
						if err := probe(t, client, f.url+path); err != nil {
							t.Fatalf("%s beside %d connections: %v", path, i+1, err)
						}
						return time.Since(began)
					})
				}
			}
		})
	}
}

func probe(t *testing.T, client *http.Client, url string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %s", resp.Status)
	}
	return nil
}

// A connection whose request is being handled is not closed to make room for idle ones.
func TestRequestsAreNotCutOffForSilentConnections(t *testing.T) {
	f := start(t, nil)
	running, finish := make(chan struct{}), make(chan struct{})
	f.Public("/slow", "waits", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { close(running); <-finish }))
	answered := make(chan error, 1)
	go func() { answered <- probe(t, http.DefaultClient, f.url+"/slow") }()
	<-running
	for range 600 {
		conn, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	if err := probe(t, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, f.url+"/livez"); err != nil {
		t.Error(err)
	}
	close(finish)
	if err := <-answered; err != nil {
		t.Error(err)
	}
}

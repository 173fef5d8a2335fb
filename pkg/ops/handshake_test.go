package ops_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"fairlead.dev/pkg/ops"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
)

// The bound of the handshake does not count later requests: one connection takes any number of them with long headers.
func TestBoundEndsWithTheHandshake(t *testing.T) {
	ca := testkit.PKI(t)
	f := start(t, func(c *ops.Config) {
		c.TLS = tlsconf.Server(ca.NewSVID("istio-system", "ca"), tls.VerifyClientCertIfGiven)
	})
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("HTTP/2 %t", http2), func(t *testing.T) {
			var dialed atomic.Int32
			cfg := tlsconf.Client(ca.RootsOnly(), ca.ID("istio-system", "ca"))
			transport := &http.Transport{TLSClientConfig: cfg, ForceAttemptHTTP2: http2}
			transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
				dialed.Add(1)
				return (&net.Dialer{}).DialContext(ctx, network, address)
			}
			defer transport.CloseIdleConnections()
			for range 10 {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, strings.Replace(f.url, "http:", "https:", 1)+"/livez", nil)
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("X-Long", strings.Repeat("xyz#", 20<<10/4))
				if code, body := send(t, &http.Client{Transport: transport}, r); code != http.StatusOK {
					t.Fatalf("%d %s", code, body)
				}
			}
			if n := dialed.Load(); n != 1 {
				t.Errorf("%d connections were opened", n)
			}
		})
	}
}

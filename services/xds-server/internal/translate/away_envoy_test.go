package translate_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"fairlead.dev/pkg/testkit"
)

// awayMesh has a service with an endpoint here and one in a cluster that is away.
const awayMesh = `
class: {namespace: default}
services:
- {hostname: web.default.svc.cluster.local, addresses: [127.66.201.10], ports: [{name: http, number: %[1]s, protocol: PROTOCOL_HTTP}]}
endpoints:
- host: web.default.svc.cluster.local
  port: %[1]s
  endpoints: [{address: 127.0.0.1, port: %[2]s, plain: true, health: %[4]s}]
- host: web.default.svc.cluster.local
  port: %[1]s
  cluster: east
  away: true
  endpoints: [{address: 127.0.0.1, port: %[3]s, plain: true}]
objects:
- kind: DestinationRule
  metadata: {name: web, namespace: default}
  spec: {host: web.default.svc.cluster.local, trafficPolicy: {outlierDetection: {consecutive5xxErrors: 1, baseEjectionTime: 60s, maxEjectionPercent: 100}}}
`

// A real Envoy leaves the endpoints of a cluster that is away alone while others answer, and uses them when none does.
func TestEnvoyUsesAClusterThatIsAwayLast(t *testing.T) {
	for name, health := range map[string]string{"a server that fails": "READY", "none that is ready": "NOT_READY"} {
		t.Run(name, func(t *testing.T) {
			application := func(says string) (*httptest.Server, string) {
				s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, says) }))
				t.Cleanup(s.Close)
				_, port, _ := strings.Cut(strings.TrimPrefix(s.URL, "http://"), ":")
				return s, port
			}
			here, herePort := application("here")
			_, awayPort := application("away")
			listener := testkit.LoopbackListener(t)
			port := listener.Addr().String()[strings.LastIndex(listener.Addr().String(), ":")+1:]
			testkit.NoError(t, listener.Close())

			client := buildAll(t, parse(t, "away", fmt.Appendf(nil, awayMesh, port, herePort, awayPort, health)))
			client.listeners = only(client.listeners, "0.0.0.0_"+port)
			for _, m := range client.listeners {
				l := m.(*listenerv3.Listener)
				l.BindToPort = nil
				l.GetAddress().GetSocketAddress().Address = "127.66.201.10"
			}
			startProxy(t, "client", client, testkit.PKI(t).NewSVID("default", "client"))
			requests := &http.Client{Timeout: 10 * time.Second}
			call := func() (code int, from string) {
				req := testkit.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.66.201.10:"+port, http.NoBody))(t)
				req.Host = "web.default.svc.cluster.local:" + port
				resp, err := requests.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				body, err := io.ReadAll(resp.Body)
				testkit.NoError(t, err)
				return resp.StatusCode, string(body)
			}
			if health == "READY" {
				for range 200 {
					if code, from := call(); code != http.StatusOK || from != "here" {
						t.Fatalf("%d %s, want the endpoint here", code, from)
					}
				}
				here.Close()
				testkit.Eventually(t, testkit.Patience, func() error {
					if code, from := call(); code != http.StatusOK {
						return fmt.Errorf("%d %s", code, from)
					}
					return nil
				})
			}
			for range 50 {
				if code, from := call(); code != http.StatusOK || from != "away" {
					t.Fatalf("%d %s, want the endpoint that is left", code, from)
				}
			}
		})
	}
}

package translate_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/envoytest"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/servetest"
	"fairlead.dev/services/xds-server/internal/translate"
)

// oneKey gives all credentials the same key, without asking who the proxy is.
type oneKey struct {
	plan.Translator
	chain, key []byte
}

func (k oneKey) Build(_ *input.Reader, name string) (proto.Message, error) {
	return tlsSecret(name, k.chain, k.key), nil
}

// keyedGateway is a real Envoy behind the whole server, with HTTPS listeners of the tests' Gateway on one port.
type keyedGateway struct {
	*servetest.Server
	proxy *envoytest.Process
	port  uint32
	roots *x509.CertPool
}

func startKeyedGateway(t *testing.T, port uint32, resources ...*configv1.Resource) *keyedGateway {
	t.Helper()
	pki := testkit.PKI(t)
	authority, err := pki.NewSVID("gateways", "shop").Current()
	if err != nil {
		t.Fatal(err)
	}
	g := &keyedGateway{port: port, roots: x509.NewCertPool()}
	g.roots.AppendCertsFromPEM(authority.RootsPEM)
	translators := translate.All()
	i := slices.IndexFunc(translators, func(k plan.Translator) bool { return k.TypeURL() == resourcev3.SecretType })
	chain, key := pki.NewServer("a.example.com", "b.example.com")
	translators[i] = oneKey{translators[i], chain, key}
	g.Server = servetest.Start(t, servetest.Config{Translators: translators})
	t.Cleanup(g.Stop)
	g.Apply(append(resources, meshtest.Workload("gateways", "shop", gatewayAddress, func(w *configv1.Workload) {
		w.Labels = map[string]string{contract.GatewayNameLabel: "shop"}
	})), nil)
	metadata, err := structpb.NewStruct(map[string]any{"INTERCEPTION_MODE": "NONE"})
	if err != nil {
		t.Fatal(err)
	}
	node := &corev3.Node{Id: "router~" + gatewayAddress + "~shop.gateways~gateways.svc.cluster.local", Metadata: metadata}
	g.proxy = envoytest.Start(t, envoytest.Bootstrap(t, node, corev3.ApiConfigSource_DELTA_GRPC, envoytest.Secrets(t, pki, "gateways", "shop"),
		g.Conn.Target()), nil)
	g.proxy.Ready()
	return g
}

// listeners makes the Gateway with HTTPS listeners for hostnames.
func (g *keyedGateway) listeners(hostnames ...string) *configv1.Resource {
	out := &configv1.GatewayListeners{Gateway: "gateways/shop", Selections: []*configv1.WorkloadSelection{
		{Namespace: "gateways", Labels: map[string]string{contract.GatewayNameLabel: "shop"}},
	}}
	for _, hostname := range hostnames {
		out.Listeners = append(out.Listeners, &configv1.GatewayListener{
			Name: hostname, Port: g.port, Hostname: hostname, Protocol: configv1.ListenerProtocol_LISTENER_PROTOCOL_HTTPS,
			Tls: meshtest.Any(&networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_SIMPLE,
				CredentialNames: []string{"kubernetes-gateway://gateways/server"}}),
		})
	}
	return meshtest.GatewayAPI(mesh.KindGatewayListeners, "gateways", "shop", out)
}

// revoke moves a listener of listeners to those whose certificate is not granted any more.
func revoke(r *configv1.Resource, hostname string) *configv1.Resource {
	spec := proto.CloneOf(r.GetGatewayApi().GetListeners())
	i := slices.IndexFunc(spec.GetListeners(), func(l *configv1.GatewayListener) bool { return l.GetHostname() == hostname })
	spec.Revoked = []*configv1.GatewayListener{spec.GetListeners()[i]}
	spec.Listeners = slices.Delete(spec.GetListeners(), i, i+1)
	return meshtest.GatewayAPI(mesh.KindGatewayListeners, "gateways", "shop", spec)
}

// kept is a connection to a host of the gateway that is kept.
type kept struct {
	client *http.Client
	host   string
	made   int
}

func (g *keyedGateway) keep(host string, http2 bool) *kept {
	k := &kept{host: host}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!http2)
	protocols.SetHTTP2(http2)
	k.client = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		Protocols: protocols, TLSClientConfig: &tls.Config{RootCAs: g.roots},
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", fmt.Sprintf("%s:%d", gatewayAddress, g.port))
		},
	}}
	return k
}

// ask sends a request, and counts connections.
func (k *kept) ask(t *testing.T) (status int, err error) {
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		if !info.Reused {
			k.made++
		}
	}})
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+k.host+"/", http.NoBody)
	if err != nil {
		return 0, err
	}
	response, err := k.client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}

func (k *kept) until(t *testing.T, status int) {
	t.Helper()
	testkit.Eventually(t, testkit.Patience, func() error {
		if got, err := k.ask(t); err != nil || got != status {
			return fmt.Errorf("%s answers %d (%w), want %d", k.host, got, err, status)
		}
		return nil
	})
}

// drainTime is how long the tests' Envoy leaves connections that it drains.
const drainTime = time.Second

// With a real Envoy, connections of an HTTPS listener stay while another listener of the port is added, changed and
// removed: Envoy replaces the filter chains that have changed alone.
func TestHTTPSListenersOfAPortAreReplacedInPlace(t *testing.T) {
	const port = 8453
	const a, b = "a.example.com", "b.example.com"
	g := startKeyedGateway(t, port, append(backend("echo.default.svc.cluster.local", pathEcho(t), configv1.Protocol_PROTOCOL_HTTP),
		attachedRoute(mesh.KindHTTPRoute, a, []*configv1.ListenerAttachment{attachment(a, a)},
			rule("a", "/*", toHost("echo.default.svc.cluster.local"))))...)
	g.Apply([]*configv1.Resource{g.listeners(a)}, nil)
	pause := time.NewTicker(5 * time.Millisecond)
	defer pause.Stop()
	for _, http2 := range []bool{false, true} {
		g.keep(a, http2).until(t, http.StatusOK)
		stays := g.keep(a, http2)
		stays.until(t, http.StatusOK)
		for _, hostnames := range [][]string{{a, b}, {a, "*.example.com"}, {a}} {
			g.Apply([]*configv1.Resource{g.listeners(hostnames...)}, nil)
			if len(hostnames) > 1 {
				g.keep(b, http2).until(t, http.StatusNotFound) // by the new listener, for which there is no route
			}
			for end := time.Now().Add(2 * drainTime); time.Now().Before(end); {
				<-pause.C
				if status, err := stays.ask(t); err != nil || status != http.StatusOK {
					t.Fatalf("listeners for %v: %d, %v", hostnames, status, err)
				}
			}
		}
		if stays.made != 1 {
			t.Errorf("HTTP/2 %v: %d connections were made, want one", http2, stays.made)
		}
	}
	g.proxy.Accepted()
}

// With a real Envoy, a request for the host of another HTTPS listener of the port gets 421, of gRPC UNAVAILABLE.
func TestMisdirectedGRPCByEnvoy(t *testing.T) {
	const port, a, b = 8454, "a.example.com", "b.example.com"
	var resources []*configv1.Resource
	for _, host := range []string{a, b} {
		resources = append(resources, attachedRoute(mesh.KindHTTPRoute, host, []*configv1.ListenerAttachment{attachment(host, host)},
			rule("a", "/*", answer(http.StatusOK))))
	}
	g := startKeyedGateway(t, port, resources...)
	g.Apply([]*configv1.Resource{g.listeners(a, b)}, nil)
	k := g.keep(a, true)
	k.until(t, http.StatusOK)
	for contentType, want := range map[string]string{"text/plain": "421 ", "application/grpc": "200 14"} {
		request, err := http.NewRequest(http.MethodPost, "https://"+a+"/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		request.Host = b
		request.Header.Set("Content-Type", contentType)
		response, err := k.client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(response.StatusCode, " ", response.Header.Get("Grpc-Status")); got != want {
			t.Errorf("%s: got %q, want %q", contentType, got, want)
		}
		if err := response.Body.Close(); err != nil {
			t.Error(err)
		}
	}
}

// With a real Envoy, a connection that was made while a listener's certificate was granted serves no request from the
// moment on when it is not, long before Envoy has drained it; requests come again with the grant. Where the listener is
// removed without that, connections drain as ever.
func TestConnectionsOfARevokedListenerServeNoRequests(t *testing.T) {
	const port, a, b = 8455, "a.example.com", "b.example.com"
	g := startKeyedGateway(t, port, attachedRoute(mesh.KindHTTPRoute, a, []*configv1.ListenerAttachment{attachment(a, a)},
		rule("a", "/*", answer(http.StatusOK))))
	for _, others := range [][]string{{b}, nil} {
		whole, without := g.listeners(append([]string{a}, others...)...), g.listeners(others...)
		for _, http2 := range []bool{false, true} {
			g.Apply([]*configv1.Resource{whole}, nil)
			g.keep(a, http2).until(t, http.StatusOK)
			k := g.keep(a, http2)
			k.until(t, http.StatusOK)
			g.Apply([]*configv1.Resource{revoke(whole, a)}, nil)
			began := time.Now()
			k.until(t, http.StatusMisdirectedRequest)
			if took := time.Since(began); took > drainTime*3/4 || k.made != 1 {
				t.Errorf("beside %v: requests pass for %v, by %d connections", others, took, k.made)
			}
		}
		g.Apply([]*configv1.Resource{whole}, nil)
		k := g.keep(a, false)
		k.until(t, http.StatusOK)
		g.Apply([]*configv1.Resource{without}, nil)
		testkit.Eventually(t, testkit.Patience, func() error {
			status, err := k.ask(t)
			if err == nil && status != http.StatusOK {
				t.Errorf("beside %v: a connection that drains answers %d", others, status)
			}
			if err == nil && k.made == 1 {
				return errors.New("it is not drained")
			}
			return nil
		})
	}
	g.proxy.Accepted()
}

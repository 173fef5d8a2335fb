package app_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"go.opentelemetry.io/otel/trace/noop"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/contract"
	secretv1 "fairlead.dev/proto/fairlead/secret/v1"
	"fairlead.dev/services/xds-server/internal/envoytest"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// httpsClient asks one HTTPS server of a gateway over a connection of its own.
type httpsClient struct {
	address string
	roots   *x509.CertPool
	own     []tls.Certificate
}

// get returns the certificate that the server shows for a host, and what it answers.
func (c httpsClient) get(host string) (shown *x509.Certificate, body string, err error) {
	transport := &http.Transport{
		DialTLSContext: (&tls.Dialer{Config: &tls.Config{ServerName: host, RootCAs: c.roots, Certificates: c.own,
			MinVersion: tls.VersionTLS12}}).DialContext,
		DisableKeepAlives: true,
	}
	client := &http.Client{Timeout: 5 * time.Second, Transport: rewritten{transport, c.address}}
	res, err := client.Get("https://" + host + "/")
	if err != nil {
		return nil, "", err
	}
	raw, err := io.ReadAll(res.Body)
	if err = errors.Join(err, res.Body.Close()); err != nil {
		return nil, "", err
	}
	return res.TLS.PeerCertificates[0], string(raw), nil
}

// rewritten sends every request to one address.
type rewritten struct {
	transport *http.Transport
	address   string
}

func (r rewritten) RoundTrip(req *http.Request) (*http.Response, error) {
	out := req.Clone(req.Context())
	out.Host, out.URL.Host = req.URL.Host, r.address
	return r.transport.RoundTrip(out)
}

// TestCredentialsOnEnvoy: gateways that are the real Envoy answer with the credential, with a replaced one without an
// update of the listener, and with the last one when it is removed; a credential that is not there costs nothing but
// its own server; a gateway of another namespace is not given it.
func TestCredentialsOnEnvoy(t *testing.T) {
	for _, apiType := range []core.ApiConfigSource_ApiType{core.ApiConfigSource_DELTA_GRPC, core.ApiConfigSource_GRPC} {
		t.Run(apiType.String(), func(t *testing.T) {
			envoytest.Binary(t)
			pki := testkit.PKI(t)
			edge := testkit.FreeAddress(t)
			server := func(name string, mode networking.ServerTLSSettings_TLSmode, credential string) *networking.Server {
				return httpsServer(uint32(edge.Port()), name, name+".example.com",
					&networking.ServerTLSSettings{Mode: mode, CredentialName: credential})
			}
			watcher := startWatcher(t, pki,
				gatewayWorkload("edge", edge.Addr().String()), gatewayWorkload("other", testkit.Twin(edge).Addr().String()),
				gatewayOf(server("simple", networking.ServerTLSSettings_SIMPLE, "shop-tls"),
					server("missing", networking.ServerTLSSettings_SIMPLE, "nothing"),
					server("mutual", networking.ServerTLSSettings_MUTUAL, "mutual"), server("open", networking.ServerTLSSettings_MUTUAL, "without-ca"),
					server("optional", networking.ServerTLSSettings_OPTIONAL_MUTUAL, "mutual")),
				meshtest.Config(mesh.KindVirtualService, "edge", "shop", &networking.VirtualService{
					Hosts: []string{"*"}, Gateways: []string{"edge/shop"},
					Http: []*networking.HTTPRoute{{DirectResponse: &networking.HTTPDirectResponse{
						Status: 200, Body: &networking.HTTPBody{Specifier: &networking.HTTPBody_String_{String_: "hello"}},
					}}},
				}))
			chain, key := pki.NewServer("simple.example.com", "missing.example.com", "mutual.example.com", "open.example.com",
				"optional.example.com")
			authority := testkit.CertPEM(pki.Cert)
			f := &watcher.secrets
			f.put("edge/shop-tls", &secretv1.Credential{CertificateChain: chain, PrivateKey: key})
			f.put("edge/mutual", &secretv1.Credential{CertificateChain: chain, PrivateKey: key, CaCertificates: authority})
			f.put("edge/mutual-cacert", &secretv1.Credential{CaCertificates: authority})
			f.put("edge/without-ca", &secretv1.Credential{CertificateChain: chain, PrivateKey: key})
			xds := startServer(t, pki, watcher.address, noop.NewTracerProvider())
			xds.WaitReady()
			gateway := func(namespace, address string) *envoytest.Process {
				config := envoytest.Bootstrap(t, gatewayNode(namespace, address), apiType, "", xds.secure)
				return envoytest.Start(t, envoytest.Secure(t, config, pki, namespace, "gateway",
					pki.ID(contract.SystemNamespace, contract.XDSServerAccount).String()), nil)
			}
			begun := time.Now()
			e := gateway("edge", edge.Addr().String())
			roots := x509.NewCertPool()
			roots.AddCert(pki.Cert)
			client := httpsClient{address: edge.String(), roots: roots}
			answers := func(client httpsClient, host string, chain []byte) {
				t.Helper()
				testkit.Eventually(t, patience, func() error {
					shown, body, err := client.get(host)
					if err != nil {
						return err
					}
					if body != "hello" || string(testkit.CertPEM(shown)) != string(chain) {
						return fmt.Errorf("%s: body %q, shown %s", host, body, shown.SerialNumber)
					}
					return nil
				})
			}
			refuses := func(client httpsClient, host string) {
				t.Helper()
				if _, _, err := client.get(host); err == nil {
					t.Errorf("%s answers", host)
				}
			}
			answers(client, "simple.example.com", chain)
			// Nobody has waited for a credential that is missing; a state-of-the-world stream cannot say that it is, so
			// there Envoy waits 5 s, and not the 15 s that are its default.
			for name, n := range e.Stats("init_fetch_timeout$") {
				if n != 0 && apiType == core.ApiConfigSource_DELTA_GRPC {
					t.Errorf("%s is %d", name, n)
				}
			}
			if took := time.Since(begun); took > 14*time.Second {
				t.Errorf("the first answer took %s", took)
			}
			e.Ready()
			e.Accepted()

			// Clients are verified where they have to be, and never admitted for want of what to verify them with.
			own, err := tls.X509KeyPair(chain, key)
			if err != nil {
				t.Fatal(err)
			}
			stranger := testkit.NewCA(t, "cluster.local", time.Now())
			strangerChain, strangerKey := stranger.NewServer("client")
			foreign, err := tls.X509KeyPair(strangerChain, strangerKey)
			if err != nil {
				t.Fatal(err)
			}
			with := func(own tls.Certificate) httpsClient {
				return httpsClient{client.address, roots, []tls.Certificate{own}}
			}
			answers(with(own), "mutual.example.com", chain)
			answers(with(own), "optional.example.com", chain)
			answers(client, "optional.example.com", chain)
			refuses(client, "mutual.example.com")
			refuses(with(foreign), "mutual.example.com")
			refuses(with(foreign), "optional.example.com")
			refuses(client, "missing.example.com")
			refuses(client, "open.example.com")
			refuses(with(own), "open.example.com")

			// Replaced: the next handshake shows it, and no listener was touched.
			updates := func() int {
				return e.Stats("listener_manager.lds.update_success$")["listener_manager.lds.update_success"]
			}
			before := updates()
			chain2, key2 := pki.NewServer("simple.example.com")
			f.put("edge/shop-tls", &secretv1.Credential{CertificateChain: chain2, PrivateKey: key2})
			answers(client, "simple.example.com", chain2)
			// It comes late.
			f.put("edge/nothing", &secretv1.Credential{CertificateChain: chain, PrivateKey: key})
			answers(client, "missing.example.com", chain)
			// Removed: the last one stays.
			f.put("edge/shop-tls", nil)
			f.put("edge/nothing", &secretv1.Credential{CertificateChain: chain2, PrivateKey: key2})
			late := httpsClient{client.address, roots, nil}
			testkit.Eventually(t, patience, func() error { // what came after the removal has arrived
				if _, _, err := late.get("missing.example.com"); err == nil || !strings.Contains(err.Error(), "valid for simple.example.com") {
					return fmt.Errorf("not replaced: %w", err)
				}
				return nil
			})
			answers(client, "simple.example.com", chain2)
			if after := updates(); after != before {
				t.Errorf("%d updates of listeners for changes of Secrets", after-before)
			}
			e.Accepted()

			// A gateway of another namespace that the same Gateway selects.
			other := gateway("other", testkit.Twin(edge).Addr().String())
			other.Ready()
			elsewhere := httpsClient{testkit.Twin(edge).String(), roots, nil}
			testkit.Eventually(t, patience, func() error {
				conn, err := net.Dial("tcp", elsewhere.address)
				if err != nil {
					return err
				}
				return conn.Close()
			})
			refuses(elsewhere, "simple.example.com")
			refuses(elsewhere, "missing.example.com")
			if _, dump, err := other.Get("/certs"); err != nil || strings.Contains(string(dump), "example.com") {
				t.Errorf("a foreign gateway has certificates: %s %v", dump, err)
			}
			other.Accepted()
		})
	}
}

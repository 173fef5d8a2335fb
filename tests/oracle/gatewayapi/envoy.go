package gatewayapi

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secret "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/tests/internal/netns"
	"fairlead.dev/tests/internal/probe"
	"fairlead.dev/tests/internal/process"
)

// bootstrap is that of an Envoy without an agent: everything comes from a control plane, and the certificate of the
// workload from the test.
const bootstrap = `
node: {id: "%[7]s~%[1]s~%[2]s.%[3]s~%[3]s.svc.cluster.local", cluster: %[4]s, metadata: %[5]s}
admin: {address: {pipe: {path: %[6]s/admin}}}
dynamic_resources:
  ads_config: {api_type: DELTA_GRPC, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: xds-grpc}}]}
  cds_config: {ads: {}, resource_api_version: V3}
  lds_config: {ads: {}, resource_api_version: V3}
static_resources:
  clusters:
  - name: xds-grpc
    type: STATIC
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment:
      cluster_name: xds-grpc
      endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: %[6]s/xds}}}}]}]
  - name: sds-grpc
    type: STATIC
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment:
      cluster_name: sds-grpc
      endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: %[6]s/sds}}}}]}]
`

// plane is a control plane.
type plane struct {
	name string
	// address is that of xDS, where the holder of a certificate of the ca is served, account the server's own identity.
	address, account string
	ca               *testkit.CA
	stop             func()
}

// running is an Envoy of a workload.
type running struct {
	host    *netns.Host
	process *process.Process
	dir     string
	stop    []func()
}

// start runs an Envoy on a machine and waits until it serves all that its control plane has for the workload.
func (p *plane) start(ctx context.Context, host *netns.Host, envoy string, of *proxy) (*running, error) {
	dir, err := os.MkdirTemp("", "oracle")
	if err != nil {
		return nil, err
	}
	r := &running{host: host, dir: dir, stop: []func(){func() { _ = os.RemoveAll(dir) }}}
	if err := r.start(ctx, p, envoy, of); err != nil {
		r.close()
		return nil, fmt.Errorf("%s: the Envoy of %s/%s: %w", p.name, of.namespace, of.service, err)
	}
	return r, nil
}

func (r *running) start(ctx context.Context, p *plane, envoy string, of *proxy) error {
	metadata, err := json.Marshal(map[string]any{
		"NAME": of.pod(), "NAMESPACE": of.namespace, "SERVICE_ACCOUNT": of.service, "INSTANCE_IPS": of.ip.String(), "ISTIO_VERSION": "1.31.1",
		"CLUSTER_ID": "Kubernetes", "LABELS": of.labels, "INTERCEPTION_MODE": "REDIRECT",
	})
	if err != nil {
		return err
	}
	identity := p.ca.NewSVID(of.namespace, of.service)
	if err := r.forward(filepath.Join(r.dir, "xds"), p, identity); err != nil {
		return err
	}
	if err := r.secrets(filepath.Join(r.dir, "sds"), identity); err != nil {
		return err
	}
	config, log := filepath.Join(r.dir, "envoy.yaml"), filepath.Join(r.dir, "envoy.log")
	kind := "router"
	if of.sidecar() {
		kind = "sidecar"
	}
	text := fmt.Sprintf(bootstrap, of.ip, of.pod(), of.namespace, of.service, metadata, r.dir, kind)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	nobody := filepath.Join(r.dir, "resolv.conf") // names of ServiceEntries are nobody's, and that is known at once
	if err := os.WriteFile(nobody, []byte("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"), 0o600); err != nil {
		return err
	}
	r.process, err = r.host.Start(netns.Program{Name: "envoy", Path: envoy, Stdout: log, Stderr: log, ResolvConf: nobody, Args: []string{
		"-c", config, "--concurrency", "1", "--disable-hot-restart", "--log-level", "warning",
	}})
	if err != nil {
		return err
	}
	r.stop = append(r.stop, r.process.Kill)
	admin := probe.Unix(filepath.Join(r.dir, "admin"))
	return r.process.UntilEvery(ctx, 20*time.Millisecond, testkit.Patience, func() error {
		if err := probe.Ready(ctx, admin, "http://envoy/ready"); err != nil {
			return err
		}
		stats, err := probe.Stats(ctx, admin, "warming", "")
		for name, n := range stats {
			if n > 0 {
				err = fmt.Errorf("%s is %d", name, n)
			}
		}
		return err
	})
}

// rejected are what Envoy has said of what it refuses.
func (r *running) rejected() string {
	var out []string
	for line := range strings.Lines(process.Tail(filepath.Join(r.dir, "envoy.log"))) {
		if strings.Contains(line, "rejected") {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return strings.Join(out, "\n")
}

func (r *running) close() {
	for i := range r.stop {
		r.stop[len(r.stop)-1-i]()
	}
}

// forward makes connections to a socket ones to the control plane, with an identity.
func (r *running) forward(socket string, p *plane, identity tlsconf.Source) error {
	config := tlsconf.Client(identity, p.ca.ID(system, p.account))
	config.NextProtos = []string{"h2"}
	return r.listen(socket, func(conn net.Conn) {
		defer conn.Close()
		to, err := tls.Dial("tcp", p.address, config)
		if err != nil {
			return // Envoy tries again, and says so if it never succeeds
		}
		defer to.Close()
		go func() {
			_, _ = io.Copy(to, conn)
			_ = to.CloseWrite()
		}()
		_, _ = io.Copy(conn, to)
	})
}

func (r *running) listen(socket string, serve func(net.Conn)) error {
	lis, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	r.stop = append(r.stop, func() { _ = lis.Close() })
	go func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			go serve(conn)
		}
	}()
	return nil
}

// secrets serves the certificate of a workload and the trusted roots, as an agent does.
func (r *running) secrets(socket string, identity tlsconf.Source) error {
	lis, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	secret.RegisterSecretDiscoveryServiceServer(server, &secretServer{source: identity})
	go func() { _ = server.Serve(lis) }() // ends with Stop
	r.stop = append(r.stop, server.Stop)
	return nil
}

type secretServer struct {
	secret.UnimplementedSecretDiscoveryServiceServer
	source tlsconf.Source
}

// StreamSecrets answers the first request for each set of names.
func (s *secretServer) StreamSecrets(stream secret.SecretDiscoveryService_StreamSecretsServer) error {
	inline := func(b []byte) *core.DataSource {
		return &core.DataSource{Specifier: &core.DataSource_InlineBytes{InlineBytes: b}}
	}
	for {
		request, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if request.GetVersionInfo() != "" {
			continue
		}
		m, err := s.source.Current()
		if err != nil {
			return err
		}
		response := &discovery.DiscoveryResponse{VersionInfo: "1", Nonce: "1", TypeUrl: request.GetTypeUrl()}
		for _, name := range request.GetResourceNames() {
			out := &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
				TrustedCa: inline(m.RootsPEM),
			}}}
			if name == "default" {
				out.Type = &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
					CertificateChain: inline(m.CertPEM), PrivateKey: inline(m.KeyPEM),
				}}
			}
			resource, err := anypb.New(out)
			if err != nil {
				return err
			}
			response.Resources = append(response.Resources, resource)
		}
		if err := stream.Send(response); err != nil {
			return err
		}
	}
}

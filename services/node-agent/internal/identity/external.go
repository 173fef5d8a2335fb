package identity

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/notify"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/node-agent/internal/sds"
	"fairlead.dev/services/node-agent/internal/statedir"
)

// ExternalConfig of an External. All fields but Clock are required.
type ExternalConfig struct {
	// Path is the server's unix socket.
	Path string
	// Node identifies this proxy to the server, as Envoy does.
	Node  *corev3.Node
	Log   *slog.Logger
	Clock clock.Clock
}

// External is a client of another provider's SDS server, such as SPIRE's: it follows the workload's certificate and
// roots there and is a tlsconf.Source of them. While the server is away, the last ones stay. It is safe for concurrent
// use.
type External struct {
	notify.Notifier
	cfg ExternalConfig

	mu       sync.Mutex
	pair     *tlsv3.TlsCertificate
	roots    *tlsv3.CertificateValidationContext
	material *tlsconf.Material
	err      error
}

var _ tlsconf.Source = (*External)(nil)

const (
	// maxSecretBytes bounds a response. A chain or a bundle of roots has a few KiB.
	maxSecretBytes = 1 << 20
	// refusedEvery is how often refused secrets are logged. A server may send the next one at once.
	refusedEvery = time.Minute
)

// NewExternal makes an External. Run connects.
func NewExternal(c ExternalConfig) *External {
	c.Clock = clock.Or(c.Clock)
	return &External{cfg: c, err: fmt.Errorf("%s has not answered yet", c.Path)}
}

// Current returns the last certificate and roots, or why there are none.
func (e *External) Current() (*tlsconf.Material, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.material == nil {
		return nil, e.err
	}
	return e.material, nil
}

// Validation returns the server's validation context if it has more than one set of roots, for Envoy; else nil.
func (e *External) Validation() *tlsv3.CertificateValidationContext {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.roots.GetCustomValidatorConfig() == nil {
		return nil
	}
	return e.roots
}

// Run follows the secrets until ctx ends.
func (e *External) Run(ctx context.Context) error {
	conn, err := grpc.NewClient("passthrough:///"+e.cfg.Path,
		grpc.WithTransportCredentials(insecure.NewCredentials()), // a unix socket
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return statedir.Dial(ctx, e.cfg.Path) }),
		grpc.WithAuthority("localhost"), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxSecretBytes)))
	if err != nil {
		return err
	}
	defer conn.Close()
	client := secretv3.NewSecretDiscoveryServiceClient(conn)
	var streams sync.WaitGroup
	for _, name := range []string{sds.Default, sds.RootCA} { // Envoy opens a stream for each, too
		streams.Go(func() { e.follow(ctx, client, name) })
	}
	streams.Wait()
	return nil
}

// follow opens one stream after the other until ctx ends.
func (e *External) follow(ctx context.Context, client secretv3.SecretDiscoveryServiceClient, name string) {
	said := ""
	var refused refusals
	rpc.Reopener{Clock: e.cfg.Clock}.Run(ctx, func(ctx context.Context) (bool, error) {
		got, err := e.stream(ctx, client, name, &refused)
		if got {
			said = ""
		}
		return got, err
	}, func(err error, _ time.Duration) {
		err = fmt.Errorf("secret %s of %s: %w", name, e.cfg.Path, err)
		if err.Error() != said {
			said = err.Error()
			e.cfg.Log.Warn("the external SDS server does not serve", "error", err)
		}
		e.failed(err)
	})
}

// stream receives one secret until the stream ends, and reports whether it received one that can be used.
func (e *External) stream(ctx context.Context, client secretv3.SecretDiscoveryServiceClient, name string, refused *refusals) (got bool,
	err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.StreamSecrets(ctx)
	if err != nil {
		return false, err
	}
	request := &discoveryv3.DiscoveryRequest{Node: e.cfg.Node, TypeUrl: sds.TypeURL, ResourceNames: []string{name}}
	for {
		if err := stream.Send(request); err != nil {
			_, err = stream.Recv() // it has the reason
			return got, err
		}
		response, err := stream.Recv()
		if err != nil {
			return got, err
		}
		request.ResponseNonce, request.ErrorDetail = response.GetNonce(), nil
		if err := e.take(name, response); err != nil {
			if n := refused.count(e.cfg.Clock.Now()); n > 0 {
				e.cfg.Log.Error("a secret of the external SDS server is refused", "secret", name, "error", err, "refused_since_last_line", n)
			}
			request.ErrorDetail = &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: err.Error()}
			e.failed(fmt.Errorf("secret %s of %s: %w", name, e.cfg.Path, err))
			continue
		}
		got = true
		request.VersionInfo = response.GetVersionInfo()
	}
}

// refusals says which of many refusals of a secret are logged.
type refusals struct {
	next   time.Time
	silent int
}

// count counts a refusal and returns 0, or, for one that is to be logged, the number since the one that was logged
// before.
func (r *refusals) count(now time.Time) int {
	r.silent++
	if now.Before(r.next) {
		return 0
	}
	n := r.silent
	r.silent, r.next = 0, now.Add(refusedEvery)
	return n
}

// failed keeps the reason for Current, while there is nothing else.
func (e *External) failed(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.err = err
}

// take adopts the secret of a response, together with the other one that is held.
func (e *External) take(name string, response *discoveryv3.DiscoveryResponse) error {
	secret, err := secretOf(name, response)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	pair, roots := e.pair, e.roots
	if name == sds.Default {
		if pair = secret.GetTlsCertificate(); pair == nil {
			return errors.New("it is not a certificate with its key")
		}
	} else if roots = secret.GetValidationContext(); roots == nil {
		return errors.New("it is not a validation context")
	}
	material, err := externalMaterial(pair, roots)
	if err != nil {
		return err
	}
	e.pair, e.roots = pair, roots
	if material == nil {
		e.err = errors.New("the external SDS server has sent no roots yet")
		return nil
	}
	if material.Certificate != nil && (e.material == nil || !material.NotAfter.Equal(e.material.NotAfter)) {
		id, _ := material.ID() // for the log
		e.cfg.Log.Info("certificate received from the external SDS server", "identity", id.String(), "not_after", material.NotAfter)
	}
	e.material = material
	e.Notify()
	return nil
}

// secretOf finds the secret in a response of one that was asked for.
func secretOf(name string, response *discoveryv3.DiscoveryResponse) (*tlsv3.Secret, error) {
	for _, packed := range response.GetResources() {
		secret := &tlsv3.Secret{}
		if err := packed.UnmarshalTo(secret); err != nil {
			return nil, err
		}
		if err := secret.ValidateAll(); err != nil {
			return nil, err
		}
		if secret.GetName() == name {
			return secret, nil
		}
	}
	return nil, fmt.Errorf("the response has %d secrets, none of them %s", len(response.GetResources()), name)
}

// externalMaterial parses what the server has sent: nil as long as it has sent no roots. Of a list of trust domains it
// takes the roots of that of the certificate; Envoy gets the list itself.
func externalMaterial(pair *tlsv3.TlsCertificate, roots *tlsv3.CertificateValidationContext) (*tlsconf.Material, error) {
	chain, key, err := inlinePair(pair)
	if err != nil {
		return nil, err
	}
	if roots == nil {
		if pair != nil { // refuse a broken pair before the roots are there
			if _, err := tls.X509KeyPair(chain, key); err != nil {
				return nil, err
			}
		}
		return nil, nil //nolint:nilnil // nothing yet is no error
	}
	bundle, err := inlineBytes("trusted_ca", roots.GetTrustedCa())
	if err != nil {
		return nil, err
	}
	if custom := roots.GetCustomValidatorConfig(); custom != nil {
		if bundle, err = spiffeBundle(custom, chain); err != nil {
			return nil, err
		}
	}
	return tlsconf.NewMaterial(chain, key, bundle)
}

func inlinePair(pair *tlsv3.TlsCertificate) (chain, key []byte, err error) {
	if pair == nil {
		return nil, nil, nil
	}
	if pair.GetPrivateKeyProvider() != nil {
		return nil, nil, errors.New("its key is held by a private key provider, which the agent cannot use: let the server send keys")
	}
	if chain, err = inlineBytes("certificate_chain", pair.GetCertificateChain()); err != nil {
		return nil, nil, err
	}
	key, err = inlineBytes("private_key", pair.GetPrivateKey())
	return chain, key, err
}

// inlineBytes returns what a secret has in itself. A server must not make the agent read files and variables.
func inlineBytes(field string, d *corev3.DataSource) ([]byte, error) {
	switch s := d.GetSpecifier().(type) {
	case nil:
		return nil, nil
	case *corev3.DataSource_InlineBytes:
		return s.InlineBytes, nil
	case *corev3.DataSource_InlineString:
		return []byte(s.InlineString), nil
	default:
		return nil, fmt.Errorf("%s is a file or a variable: want it inline", field)
	}
}

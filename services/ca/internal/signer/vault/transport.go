package vault

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/hashicorp/vault/api"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/tlsconf"
)

const (
	// maxAnswer bounds an answer. That of a list of revoked certificates may be maxCRL.
	maxAnswer = 256 << 10
	maxCRL    = 8 << 20
	// maxFile bounds a file with a token, a certificate or a key.
	maxFile = 1 << 20
	// idleConnections are kept open: the ca has as many requests in flight as package guard allows.
	idleConnections = 64
	dialTimeout     = 10 * time.Second
)

// errTooLarge means that Vault's answer has more bytes than were asked for.
var errTooLarge = errors.New("the answer is too large")

// errTooMany means that Vault, or a proxy before it, takes no more requests (status 429).
type errTooMany struct{ retryAfter time.Duration }

func (*errTooMany) Error() string { return "too many requests" }

// errLocal is a file of the ca's own that cannot be used.
type errLocal struct{ err error }

func (e *errLocal) Error() string { return e.err.Error() }
func (e *errLocal) Unwrap() error { return e.err }

// transport makes the connections to Vault, and bounds its answers. Each new connection reads the files of the
// configuration again.
type transport struct {
	cfg  *Config
	base *http.Transport
}

// newTransport makes a transport; one that is not pooled makes a connection for each request.
func newTransport(cfg *Config, pooled bool) *transport {
	t := &transport{cfg: cfg}
	t.base = &http.Transport{
		DialTLSContext: t.dial, MaxResponseHeaderBytes: 64 << 10, MaxIdleConnsPerHost: idleConnections,
		IdleConnTimeout: 90 * time.Second, DisableKeepAlives: !pooled,
	}
	return t
}

func (t *transport) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.cfg.ServerName}
	if t.cfg.CAFile != "" {
		roots, err := readRoots(t.cfg.CAFile)
		if err != nil {
			return nil, &errLocal{err}
		}
		conf.RootCAs = roots
	}
	if a := t.cfg.Auth.TLS; a != nil {
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return readPair(a) }
	}
	// The timeout of NetDialer bounds the handshake too.
	d := tls.Dialer{NetDialer: &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}, Config: conf}
	return d.DialContext(ctx, network, address)
}

func readRoots(file string) (*x509.CertPool, error) {
	text, err := fileio.ReadRegular(file, maxFile)
	if err != nil {
		return nil, fmt.Errorf("caFile: %w", err)
	}
	roots, err := tlsconf.ParseRoots(text)
	if err != nil {
		return nil, fmt.Errorf("caFile %s: %w", file, err)
	}
	return roots, nil
}

func readPair(a *TLSAuth) (*tls.Certificate, error) {
	cert, err := fileio.ReadRegular(a.CertFile, maxFile)
	if err != nil {
		return nil, &errLocal{fmt.Errorf("auth.tls.certFile: %w", err)}
	}
	key, err := fileio.ReadRegular(a.KeyFile, maxFile)
	if err != nil {
		return nil, &errLocal{fmt.Errorf("auth.tls.keyFile: %w", err)}
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, &errLocal{fmt.Errorf("auth.tls: %s and %s are no certificate with its key: %w", a.CertFile, a.KeyFile, err)}
	}
	return &pair, nil
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.base.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	limit := int64(maxAnswer)
	if larger, ok := r.Context().Value(limitKey{}).(int64); ok {
		limit = larger
	}
	if resp.StatusCode == http.StatusTooManyRequests {
		resp.Body.Close()
		seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
		return nil, &errTooMany{time.Duration(max(0, min(seconds, 60))) * time.Second}
	}
	resp.Body = &boundedBody{body: resp.Body, left: limit}
	return resp, nil
}

type limitKey struct{}

// withLimit allows answers of so many bytes to requests with the returned context.
func withLimit(ctx context.Context, bytes int64) context.Context {
	return context.WithValue(ctx, limitKey{}, bytes)
}

// boundedBody fails instead of returning more bytes than are left.
type boundedBody struct {
	body io.ReadCloser
	left int64
}

// Read implements io.Reader.
func (b *boundedBody) Read(p []byte) (int, error) {
	// One byte more than may be read tells an answer that ends at the bound from one that goes on.
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.body.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, errTooLarge
	}
	return n, err
}

// Close implements io.Closer.
func (b *boundedBody) Close() error { return b.body.Close() }

// newClient makes a client of Vault's API without a token. The library also reads VAULT_TOKEN and other variables of
// the environment; nothing of them is left in the client, because Config alone says how the ca talks to Vault.
func newClient(cfg *Config, t *transport) (*api.Client, error) {
	client, err := api.NewClient(&api.Config{
		Address: cfg.Address,
		// Zero retries: the ca has limits and a breaker of its own.
		MaxRetries: 0,
		HttpClient: &http.Client{
			Transport:     t,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	})
	if err != nil {
		return nil, fmt.Errorf("make a client of Vault; if a variable VAULT_... of the environment is wrong, remove it: %w", err)
	}
	client.ClearToken()
	headers := http.Header{api.RequestHeaderName: {"true"}}
	if cfg.Namespace != "" {
		headers.Set(api.NamespaceHeaderName, cfg.Namespace)
	}
	client.SetHeaders(headers)
	return client, nil
}

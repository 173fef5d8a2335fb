package clustertrust

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"fairlead.dev/pkg/clusterkeys"
	"fairlead.dev/pkg/fileio"
)

// nomadTimeout bounds one request to Nomad.
const nomadTimeout = 10 * time.Second

// Nomad says where a cluster of Nomad tells its keys.
type Nomad struct {
	// From is the https URL of its HTTP API, or a file with the answer of /.well-known/jwks.json. http is taken to the
	// own machine alone: whoever is on the way could put in a key of his.
	From string
	// CAFile has the CAs of the URL in PEM; "" for those of the machine.
	CAFile string
	// Issuer is that of the tokens, for a file; of a URL, Nomad says it.
	Issuer string
}

// ReadNomad asks a cluster of Nomad for its keys and its issuer, which it has only with oidc_issuer.
func ReadNomad(ctx context.Context, what string, from Nomad) (*Tokens, error) {
	if !strings.Contains(from.From, "://") {
		raw, err := fileio.Read(from.From, maxAnswer)
		if err != nil {
			return nil, fmt.Errorf("--nomad: %w", err)
		}
		return nomadTokens(from.From, from.Issuer, raw)
	}
	base, client, err := from.client()
	if err != nil {
		return nil, err
	}
	issuer := from.Issuer
	about, err := get(ctx, client, base+"/.well-known/openid-configuration")
	switch {
	case errors.Is(err, errNotFound): // without oidc_issuer
	case err != nil:
		return nil, fmt.Errorf("%s: %w", what, err)
	default:
		var says struct {
			Issuer string `json:"issuer"`
		}
		if err := json.Unmarshal(about, &says); err != nil || says.Issuer == "" {
			return nil, fmt.Errorf("%s: %s/.well-known/openid-configuration names no issuer; is it the address of Nomad's HTTP API?", what, base)
		}
		issuer = says.Issuer
	}
	keys := base + "/.well-known/jwks.json"
	raw, err := get(ctx, client, keys)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return nomadTokens(keys, issuer, raw)
}

func nomadTokens(where, issuer string, raw []byte) (*Tokens, error) {
	keys, err := clusterkeys.PublicKeys(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	return &Tokens{Issuer: issuer, Keys: keys, Nomad: true}, nil
}

// client checks the address and returns a client for it, which follows no redirect.
func (n *Nomad) client() (base string, client *http.Client, err error) {
	u, err := url.Parse(n.From)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", nil, fmt.Errorf("--nomad: %.200q is no address of an HTTP API, such as https://nomad.example.com:4646, and no file", n.From)
	}
	switch {
	case u.Scheme == "https":
	case u.Scheme == "http" && ownMachine(u.Hostname()):
	default:
		return "", nil, fmt.Errorf("--nomad: %s is not https: on the way somebody could put in a key of his; use https, or a file that "+
			"`nomad operator api /.well-known/jwks.json` has written", n.From)
	}
	trusted := &tls.Config{MinVersion: tls.VersionTLS12}
	if n.CAFile != "" {
		pem, err := fileio.Read(n.CAFile, maxAnswer)
		if err != nil {
			return "", nil, fmt.Errorf("--nomad-ca-file: %w", err)
		}
		trusted.RootCAs = x509.NewCertPool()
		if !trusted.RootCAs.AppendCertsFromPEM(pem) {
			return "", nil, fmt.Errorf("--nomad-ca-file: %s has no certificate in PEM", n.CAFile)
		}
	}
	return strings.TrimSuffix(n.From, "/"), &http.Client{
		Timeout:       nomadTimeout,
		Transport:     &http.Transport{TLSClientConfig: trusted, Proxy: http.ProxyFromEnvironment},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

func ownMachine(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

var errNotFound = errors.New("HTTP 404")

func get(ctx context.Context, client *http.Client, address string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, explain(err)
	}
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", address, err)
	case res.StatusCode == http.StatusNotFound:
		return nil, fmt.Errorf("%s: %w; is it the address of Nomad's HTTP API?", address, errNotFound)
	case res.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s: HTTP %d", address, res.StatusCode)
	case len(raw) > maxAnswer:
		return nil, fmt.Errorf("%s: the answer is longer than %d bytes", address, maxAnswer)
	}
	return raw, nil
}

// explain adds what to do about an error of a connection.
func explain(err error) error {
	var unknown x509.UnknownAuthorityError
	var alert *net.OpError
	switch {
	case errors.As(err, &unknown):
		return fmt.Errorf("%w; --nomad-ca-file names a file with its CA", err)
	case errors.As(err, &alert) && strings.Contains(err.Error(), "certificate"):
		return fmt.Errorf("%w; where Nomad wants a client certificate, give --nomad a file that `nomad operator api /.well-known/jwks.json` "+
			"has written", err)
	}
	return err
}

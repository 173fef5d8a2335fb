package vault

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/vault/api"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/services/ca/internal/signer"
)

// grant is a token of Vault. It is immutable.
type grant struct {
	// token is secret.
	token string
	since time.Time
	// ttl is how long it was valid at since; 0 if it does not end.
	ttl       time.Duration
	renewable bool
	// first is the ttl that a login granted. Renewals grant less once the token nears its longest life.
	first time.Duration
	// final is set if nothing lengthens the token's life.
	final bool
}

// is tells whether it is of the same token, which a renewal does not change. other may be nil.
func (g *grant) is(other *grant) bool { return other != nil && g.token == other.token }

// as returns a client that sends the token.
func (g *grant) as(client *api.Client) *api.Client {
	return client.WithRequestCallbacks(func(r *api.Request) { r.ClientToken = g.token })
}

// ends is when the token ends; zero if it does not.
func (g *grant) ends() time.Time {
	if g.ttl == 0 {
		return time.Time{}
	}
	return g.since.Add(g.ttl)
}

// renewAt is when to renew it, after two thirds of its life, or to log in anew; zero if neither is of use.
func (g *grant) renewAt() time.Time {
	if g.ttl == 0 || g.final {
		return time.Time{}
	}
	return g.since.Add(g.ttl * 2 / 3)
}

// over tells that the token has ended.
func (g *grant) over(now time.Time) bool { return g.ttl != 0 && !now.Before(g.ends()) }

// credentials are what the ca logs in with, as its files have it now.
type credentials struct {
	// method is the field of Auth.
	method string
	// path of the login; empty if token is set.
	path string
	// body of the login. It has secrets.
	body map[string]string
	// token is the one of TokenAuth.
	token string
	// cert is the client certificate, by which exchanged ones are told apart.
	cert string
}

// same tells whether nothing has been exchanged since.
func (c *credentials) same(other *credentials) bool {
	return other != nil && c.path == other.path && c.token == other.token && c.cert == other.cert && maps.Equal(c.body, other.body)
}

// secrets are what must not be repeated.
func (c *credentials) secrets() []string {
	return []string{c.token, c.body["secret_id"], c.body["jwt"], c.body["role_id"]}
}

// readCredentials reads the files.
func readCredentials(a *Auth) (*credentials, error) {
	switch {
	case a.Token != nil:
		token, err := readSecret("auth.token.file", a.Token.File)
		return &credentials{method: "token", token: token}, err
	case a.AppRole != nil:
		role, err := readSecret("auth.appRole.roleIDFile", a.AppRole.RoleIDFile)
		if err != nil {
			return nil, err
		}
		secret, err := readSecret("auth.appRole.secretIDFile", a.AppRole.SecretIDFile)
		return &credentials{method: "appRole", path: "auth/" + a.AppRole.Mount + "/login",
			body: map[string]string{"role_id": role, "secret_id": secret}}, err
	case a.Kubernetes != nil:
		token, err := readSecret("auth.kubernetes.tokenFile", a.Kubernetes.TokenFile)
		return &credentials{method: "kubernetes", path: "auth/" + a.Kubernetes.Mount + "/login",
			body: map[string]string{"role": a.Kubernetes.Role, "jwt": token}}, err
	case a.TLS != nil:
		pair, err := readPair(a.TLS)
		if err != nil {
			return nil, err
		}
		c := &credentials{method: "tls", path: "auth/" + a.TLS.Mount + "/login", cert: string(pair.Certificate[0])}
		if a.TLS.Name != "" {
			c.body = map[string]string{"name": a.TLS.Name}
		}
		return c, nil
	}
	return nil, errors.New("auth: no way to log in is configured")
}

// maxSecret bounds a token. Vault's own are below 100 bytes, those of Kubernetes mostly below 2 KiB.
const maxSecret = 16 << 10

// maxLease is the longest life of a token in seconds that is believed: a hundred years.
const maxLease = 100 * 366 * 24 * 3600

// readSecret reads a file that has one word. Errors do not show its content.
func readSecret(field, file string) (string, error) {
	content, err := fileio.ReadRegular(file, maxSecret)
	if err != nil {
		return "", &errLocal{fmt.Errorf("%s: %w", field, err)}
	}
	value := strings.TrimSpace(string(content))
	switch {
	case value == "":
		return "", &errLocal{fmt.Errorf("%s: %s is empty; write the secret into it", field, file)}
	case strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", &errLocal{fmt.Errorf("%s: %s has more than one word of printable ASCII; write only the secret into it", field, file)}
	}
	return value, nil
}

// login gets a token for the credentials.
func (s *session) login(ctx context.Context, c *credentials) (*grant, error) {
	if c.method == "token" {
		return s.lookup(ctx, c)
	}
	body := make(map[string]any, len(c.body))
	for name, value := range c.body {
		body[name] = value
	}
	began := s.clock.Now()
	answer, err := s.client.Logical().WriteWithContext(ctx, c.path, body)
	if err == nil {
		var g *grant
		if g, err = readGrant(answer, "", began); err == nil {
			g.first = g.ttl
			return g, nil
		}
	}
	return nil, fault(err, "log in ("+c.path+")", c.secrets()...)
}

// lookup asks Vault for the life of a token from a file.
func (s *session) lookup(ctx context.Context, c *credentials) (*grant, error) {
	g := &grant{token: c.token, since: s.clock.Now()}
	answer, err := g.as(s.client).Logical().ReadWithContext(ctx, "auth/token/lookup-self")
	if err == nil && (answer == nil || answer.Data == nil) {
		err = errNoSecret
	}
	ttl := int64(0)
	if err == nil {
		// A token that does not end has no expire_time. One that ends within the second has the ttl 0 too.
		if ttl = number(answer.Data, "ttl"); ttl <= 0 && answer.Data["expire_time"] != nil {
			err = &api.ResponseError{StatusCode: http.StatusForbidden, Errors: []string{"it has ended"}}
		}
	}
	if err != nil {
		refused := fault(err, "look at the token of auth.token.file", c.secrets()...)
		if refused.Fault == signer.Refused {
			refused = signer.Errorf(signer.Refused, "the token of auth.token.file (%s) is not valid at Vault: %w; %s",
				s.cfg.Auth.Token.File, refused, "write a valid token into the file, whose policies include default")
		}
		return nil, refused
	}
	g.ttl = time.Duration(max(0, min(ttl, maxLease))) * time.Second
	g.renewable, g.first = flag(answer.Data, "renewable"), g.ttl
	return g, nil
}

// readGrant reads the answer of a login or a renewal. token is the renewed one.
func readGrant(answer *api.Secret, token string, began time.Time) (*grant, error) {
	if answer == nil || answer.Auth == nil || answer.Auth.ClientToken == "" && token == "" {
		return nil, errNoSecret
	}
	if token == "" {
		token = answer.Auth.ClientToken
	}
	if len(token) > maxSecret || answer.Auth.LeaseDuration < 0 || answer.Auth.LeaseDuration > maxLease {
		return nil, errNoSecret
	}
	ttl := time.Duration(answer.Auth.LeaseDuration) * time.Second
	return &grant{token: token, since: began, ttl: ttl, renewable: answer.Auth.Renewable}, nil
}

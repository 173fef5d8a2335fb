// Package keys makes the JSON Web Tokens of a scenario, and serves the sets of the keys that sign them over HTTP and
// HTTPS, as an issuer does; steps of the scenario change the keys and how they are served.
package keys

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"fairlead.dev/tests/scenarios/internal/format"
)

// Ring has the tokens and keys of one scenario. A key that no token names is made when it is asked for. It is safe for
// concurrent use.
type Ring struct {
	tokens map[string]format.Token
	place  Place

	mu   sync.Mutex
	keys map[string]*key
}

// New makes a ring whose key sets are served at a place. Close ends that.
func New(tokens map[string]format.Token, at Place) *Ring {
	return &Ring{tokens: tokens, place: at, keys: map[string]*key{}}
}

// key is what signs tokens, and how its set is served.
type key struct {
	now, before *pairs
	state       string
	server      *server
}

// pairs are a key's, one for each algorithm that the scenario has tokens of.
type pairs struct {
	kid   string
	rsa   *rsa.PrivateKey
	ecdsa *ecdsa.PrivateKey
}

// rsaBits is the least that verifiers accept.
const rsaBits = 2048

// key finds or makes a key; the ring is locked.
func (r *Ring) key(name string) (*key, error) {
	if k := r.keys[name]; k != nil {
		return k, nil
	}
	now, err := r.generate(name)
	if err != nil {
		return nil, err
	}
	k := &key{now: now, state: Up}
	r.keys[name] = k
	return k, nil
}

func (r *Ring) generate(name string) (*pairs, error) {
	var fresh [6]byte
	_, _ = rand.Read(fresh[:]) // never fails
	p := &pairs{kid: name + "-" + hex.EncodeToString(fresh[:])}
	other := false
	var err error
	for _, t := range r.tokens {
		switch {
		case t.Key != name:
		case t.Alg != format.ES256:
			other = true
		case p.ecdsa == nil:
			if p.ecdsa, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
				return nil, err
			}
		}
	}
	if other || p.ecdsa == nil {
		p.rsa, err = rsa.GenerateKey(rand.Reader, rsaBits)
	}
	return p, err
}

// Token implements format.Keys.
func (r *Ring) Token(name string) (string, error) {
	of, before := strings.CutSuffix(name, ".before")
	spec, ok := r.tokens[of]
	if !ok {
		return "", fmt.Errorf("there is no token %q; there are %v", of, slices.Sorted(maps.Keys(r.tokens)))
	}
	issuer, err := (&format.Values{Keys: r}).File(spec.Issuer)
	if err != nil {
		return "", fmt.Errorf("token %s: issuer: %w", of, err)
	}
	spec.Issuer = issuer
	r.mu.Lock()
	defer r.mu.Unlock()
	k, err := r.key(spec.Key)
	if err != nil {
		return "", err
	}
	with := k.now
	if before {
		if with = k.before; with == nil {
			return "", fmt.Errorf("token %s: key %s has not been rotated", name, spec.Key)
		}
	}
	return with.sign(&spec, time.Now())
}

// Set implements format.Keys.
func (r *Ring) Set(name string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k, err := r.key(name)
	if err != nil {
		return "", err
	}
	return k.now.set(), nil
}

const (
	// since is how long a token has been valid already, and hour how long it is altogether.
	since = time.Minute
	hour  = time.Hour
)

// sign makes a token.
func (p *pairs) sign(t *format.Token, now time.Time) (string, error) {
	from := now.Add(-since)
	switch {
	case t.Expired:
		from = now.Add(-2 * hour)
	case t.Future:
		from = now.Add(hour)
	}
	claims := map[string]any{"iss": t.Issuer, "iat": from.Unix(), "nbf": from.Unix(), "exp": from.Add(hour).Unix()}
	if t.Subject != "" {
		claims["sub"] = t.Subject
	}
	if len(t.Audiences) > 0 {
		claims["aud"] = t.Audiences
	}
	maps.Copy(claims, t.Claims)
	header := map[string]any{"alg": t.Alg, "typ": "JWT"}
	if t.Alg != format.Unsigned {
		header["kid"] = p.kidOf(t.Alg)
	}
	text := part(header) + "." + part(claims)
	signature, err := p.signature(t.Alg, text)
	if err != nil {
		return "", fmt.Errorf("sign a token: %w", err)
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(signature), nil
}

func part(content map[string]any) string {
	raw, err := json.Marshal(content)
	if err != nil {
		return err.Error() // it comes from JSON
	}
	return base64.RawURLEncoding.EncodeToString(raw)
}

// kidOf tells keys of one set apart.
func (p *pairs) kidOf(alg string) string { return p.kid + "-" + strings.ToLower(alg[:2]) }

func (p *pairs) signature(alg, text string) ([]byte, error) {
	digest := sha256.Sum256([]byte(text))
	switch alg {
	case format.Unsigned:
		return nil, nil
	case format.ES256:
		a, b, err := ecdsa.Sign(rand.Reader, p.ecdsa, digest[:])
		if err != nil {
			return nil, err
		}
		return append(fixed(a), fixed(b)...), nil
	case format.HS256:
		secret, err := p.publicPEM()
		if err != nil {
			return nil, err
		}
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte(text))
		return mac.Sum(nil), nil
	}
	return rsa.SignPKCS1v15(rand.Reader, p.rsa, crypto.SHA256, digest[:])
}

// fixed is a number of P-256 in as many bytes as it may need.
func fixed(n *big.Int) []byte { return n.FillBytes(make([]byte, 32)) }

// publicPEM is the public key as anybody has it, which no verifier may take for a secret.
func (p *pairs) publicPEM() ([]byte, error) {
	raw, err := x509.MarshalPKIXPublicKey(p.rsa.Public())
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: raw}), err
}

// webKey is a key of a set.
type webKey struct {
	Kty string `json:"kty"`
	Kid string `json:"kid"`
	Use string `json:"use"`
	Alg string `json:"alg"`
	N   string `json:"n,omitempty"`
	E   string `json:"e,omitempty"`
	Crv string `json:"crv,omitempty"`
	X   string `json:"x,omitempty"`
	Y   string `json:"y,omitempty"`
}

// set is what is published of the pairs, as a JSON Web Key Set on one line.
func (p *pairs) set() string {
	var all []webKey
	code := base64.RawURLEncoding.EncodeToString
	if k := p.rsa; k != nil {
		all = append(all, webKey{Kty: "RSA", Kid: p.kidOf(format.RS256), Use: "sig", Alg: format.RS256, N: code(k.N.Bytes()),
			E: code(big.NewInt(int64(k.E)).Bytes())})
	}
	if k := p.ecdsa; k != nil {
		raw, err := k.PublicKey.Bytes() // uncompressed: a byte, x and y
		if err != nil {
			return err.Error() // it is on its curve
		}
		all = append(all, webKey{Kty: "EC", Kid: p.kidOf(format.ES256), Use: "sig", Alg: format.ES256, Crv: "P-256", X: code(raw[1:33]),
			Y: code(raw[33:])})
	}
	raw, err := json.Marshal(map[string]any{"keys": all})
	if err != nil {
		return strconv.Quote(err.Error()) // it is text only
	}
	return string(raw)
}

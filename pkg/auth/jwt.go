package auth

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc/metadata"

	"fairlead.dev/pkg/clock"
)

const (
	// jwtLeeway is how far the issuer's clock and ours may differ.
	jwtLeeway = 30 * time.Second
	// maxTokenBytes bounds a token before it is parsed; service account tokens have about 1 KiB.
	maxTokenBytes = 16 << 10
	// maxKeyAttempts bounds how many keys are tried for a token that names none.
	maxKeyAttempts = 16

	subjectPrefix = "system:serviceaccount:"
)

// Asymmetric algorithms only: with a shared key, a verifier could sign tokens.
var jwtAlgorithms = []jose.SignatureAlgorithm{
	jose.ES256, jose.ES384, jose.ES512,
	jose.RS256, jose.RS384, jose.RS512,
	jose.PS256, jose.PS384, jose.PS512,
	jose.EdDSA,
}

// JWTConfig says which tokens are accepted. All fields are required but MaxLifetime, those of further clusters, and
// Clock.
type JWTConfig struct {
	// JWKSFile holds the issuer's public keys (RFC 7517). It is read again when it changes.
	JWKSFile string
	// Issuer is the required `iss`.
	Issuer string
	// Audiences: `aud` must name at least one of them.
	Audiences []string
	// TrustDomain of the identities made from tokens.
	TrustDomain spiffeid.TrustDomain
	// MaxLifetime bounds the time between a token's issue and its expiry; 0 does not.
	MaxLifetime time.Duration
	// ClustersFile, if any, has the keys of further clusters, and their rules (package clusterkeys). It is read again
	// when it changes, and may be missing: then there are none. The key that verifies a token decides of which cluster
	// it is.
	ClustersFile string
	// Reserved reports whether an account is one of the mesh's own services. No token of a further cluster proves such
	// an identity. Required with ClustersFile.
	Reserved func(namespace, account string) bool
	Clock    clock.Clock
}

// JWT authenticates Kubernetes service account tokens, presented as `authorization: Bearer <token>`, against local
// files of keys: of one issuer, and of further clusters, of which some may be Nomad's. It asks nobody. It is safe for
// concurrent use.
type JWT struct {
	cfg  JWTConfig
	keys *keyFiles
}

// NewJWT checks the configuration. It does not read the key set, so the file may appear later; see Check.
func NewJWT(cfg JWTConfig) (*JWT, error) {
	var errs []error
	if cfg.JWKSFile == "" {
		errs = append(errs, errors.New("JWKS file is required"))
	}
	if cfg.Issuer == "" {
		errs = append(errs, errors.New("issuer is required"))
	}
	if len(cfg.Audiences) == 0 || slices.Contains(cfg.Audiences, "") {
		errs = append(errs, errors.New("at least one audience is required and none may be empty"))
	}
	if cfg.TrustDomain.IsZero() {
		errs = append(errs, errors.New("trust domain is required"))
	}
	if cfg.ClustersFile != "" && cfg.Reserved == nil {
		errs = append(errs, errors.New("what is reserved for the mesh's own services is required with a file of remote clusters"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("JWT authentication: %w", err)
	}
	cfg.Clock = clock.Or(cfg.Clock)
	return &JWT{cfg: cfg, keys: newKeyFiles(&cfg)}, nil
}

// Check returns what is wrong with the key set's file, nil if nothing is; it is a readiness check.
func (j *JWT) Check() error { return j.keys.check() }

// CheckClusters returns what is wrong with the further clusters: their file, of which the last good content is in
// force, and keys that several clusters have.
func (j *JWT) CheckClusters() error { return j.keys.checkClusters() }

// Authenticate verifies the bearer token in the call's metadata.
func (j *JWT) Authenticate(ctx context.Context) (Peer, error) {
	token, err := BearerToken(ctx)
	if err != nil {
		return Peer{}, err
	}
	return j.Verify(ctx, token)
}

// BearerToken returns the token in the call's metadata, unverified; ErrNoCredentials if there is no authorization
// header.
func BearerToken(ctx context.Context) (string, error) {
	values := metadata.ValueFromIncomingContext(ctx, "authorization")
	if len(values) == 0 {
		return "", ErrNoCredentials
	}
	if len(values) > 1 {
		return "", errors.New("more than one authorization header")
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	if !ok || !strings.EqualFold(scheme, "bearer") {
		return "", errors.New("authorization header is not a bearer token")
	}
	return strings.TrimSpace(token), nil
}

// Verify returns the service account of a token. The error says why the token is refused and repeats nothing of it.
func (j *JWT) Verify(_ context.Context, token string) (Peer, error) {
	if len(token) > maxTokenBytes {
		return Peer{}, errors.New("token is too long")
	}
	// go-jose would also accept the JSON form, which no client sends as a bearer token.
	if strings.Count(token, ".") != 2 {
		return Peer{}, errors.New("token is not a signed JWT")
	}
	parsed, err := jwt.ParseSigned(token, jwtAlgorithms)
	if err != nil || len(parsed.Headers) != 1 {
		return Peer{}, errors.New("token is malformed or its signature algorithm is not allowed")
	}
	claims, of, err := j.verifySignature(parsed)
	if err != nil {
		return Peer{}, err
	}
	if of != nil {
		return j.verifyForeign(claims, of)
	}
	if err := j.verifyClaims(&claims.Claims, j.cfg.Issuer); err != nil {
		return Peer{}, err
	}
	id, err := identity(j.cfg.TrustDomain, claims.Subject)
	if err != nil {
		return Peer{}, err
	}
	return Peer{ID: id, Method: MethodJWT, Token: claims.token()}, nil
}

// claims are those of a token of Kubernetes, or of Nomad.
type claims struct {
	jwt.Claims

	Kubernetes struct {
		Account object `json:"serviceaccount"`
		Pod     object `json:"pod"`
	} `json:"kubernetes.io"`
	nomadClaims
}

type object struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
}

func (c *claims) token() *Token {
	t := &Token{AccountUID: c.Kubernetes.Account.UID, Pod: c.Kubernetes.Pod.Name, PodUID: c.Kubernetes.Pod.UID}
	if c.IssuedAt != nil {
		t.IssuedAt = c.IssuedAt.Time()
	}
	return t
}

// verifySignature returns the claims of a token, and the cluster whose key has signed it, nil for the own one.
func (j *JWT) verifySignature(token *jwt.JSONWebToken) (*claims, *foreign, error) {
	header := token.Headers[0]
	for _, fresh := range []bool{false, true} {
		keys, err := j.keys.get(fresh)
		if err != nil {
			return nil, nil, errors.New("token cannot be verified: the server has no verification keys")
		}
		for _, key := range keys.candidates(header) {
			var found claims
			if err := token.Claims(key.Key, &found); err != nil {
				continue
			}
			if key.holders != "" {
				return nil, nil, fmt.Errorf("token is signed by a key that %s have, so that nobody knows of which it is; give one of them a "+
					"service account key of its own", key.holders)
			}
			return &found, key.of, nil
		}
		// If no key has this id, a file may have a new one. If one has, the signature is wrong.
		if keys.has(header.KeyID) {
			break
		}
	}
	return nil, nil, errors.New("token is not signed by a known key")
}

func (j *JWT) verifyClaims(c *jwt.Claims, issuer string) error {
	if c.Expiry == nil {
		return errors.New("token has no expiry")
	}
	if limit := j.cfg.MaxLifetime; limit > 0 {
		switch {
		case c.IssuedAt == nil:
			return errors.New("token does not say when it was issued")
		case c.Expiry.Time().Sub(c.IssuedAt.Time()) > limit:
			return fmt.Errorf("token is valid for %s from its issue on, longer than %s; ask for a token of a shorter lifetime",
				c.Expiry.Time().Sub(c.IssuedAt.Time()), limit)
		}
	}
	err := c.ValidateWithLeeway(jwt.Expected{
		Issuer:      issuer,
		AnyAudience: j.cfg.Audiences,
		Time:        j.cfg.Clock.Now(),
	}, jwtLeeway)
	switch {
	case err == nil && c.Issuer != issuer: // go-jose takes any if none is expected
		return errors.New("token is from another issuer")
	case err == nil:
		return nil
	case errors.Is(err, jwt.ErrExpired):
		return errors.New("token has expired")
	case errors.Is(err, jwt.ErrNotValidYet), errors.Is(err, jwt.ErrIssuedInTheFuture):
		return errors.New("token is not valid yet")
	case errors.Is(err, jwt.ErrInvalidIssuer):
		return errors.New("token is from another issuer")
	case errors.Is(err, jwt.ErrInvalidAudience):
		return errors.New("token is for another audience")
	default:
		return errors.New("token claims are not valid")
	}
}

func identity(td spiffeid.TrustDomain, subject string) (spiffeid.ID, error) {
	errSubject := errors.New("token subject is not a service account")
	rest, ok := strings.CutPrefix(subject, subjectPrefix)
	if !ok {
		return spiffeid.ID{}, errSubject
	}
	namespace, account, ok := strings.Cut(rest, ":")
	if !ok || !isDNSName(namespace) || !isDNSName(account) {
		return spiffeid.ID{}, errSubject
	}
	id, err := WorkloadID(td, namespace, account)
	if err != nil {
		return spiffeid.ID{}, errSubject
	}
	return id, nil
}

// dnsName is Kubernetes' rule for object names (RFC 1123 subdomain).
var dnsName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

func isDNSName(s string) bool { return len(s) <= 253 && dnsName.MatchString(s) }

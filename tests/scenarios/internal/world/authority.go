package world

import (
	"os"
	"time"

	"fairlead.dev/pkg/testkit/token"
)

// Tokens.
const (
	tokenIssuer = "https://issuer.test"
	// tokenTTL is longer than any run.
	tokenTTL = 24 * time.Hour
	// Audiences: of workloads' tokens, and of the administrator's.
	forCA    = "istio-ca"
	forAdmin = "fairlead"
)

// authority signs service account tokens and writes them to files.
type authority struct{ token.Issuer }

// newAuthority writes its public keys to a file.
func newAuthority(jwksFile string) (*authority, error) {
	issuer, err := token.NewIssuer(tokenIssuer)
	if err != nil {
		return nil, err
	}
	keys, err := issuer.JWKS()
	if err != nil {
		return nil, err
	}
	return &authority{issuer}, os.WriteFile(jwksFile, keys, 0o644)
}

// writeToken writes the token of a service account to a file that only its user can read.
func (a *authority) writeToken(file string, uid int, namespace, account, audience string) error {
	token, err := a.ServiceAccount(namespace, account, audience, tokenTTL)
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		return err
	}
	return os.Chown(file, uid, uid)
}

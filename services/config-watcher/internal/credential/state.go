package credential

import (
	"crypto/tls"
	"strings"

	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// StateOf is the change of the CredentialState of a Secret, which is nil if it is gone, with its credential.
func StateOf(k object.Key, secret *object.Object, c *object.Credential) normalise.Change {
	k.Group, k.Kind = kinds.GroupFairlead, object.KindCredentialState
	out := normalise.Change{Key: k}
	if secret == nil {
		return out
	}
	state := &object.CredentialState{}
	switch m := c.Proto(); {
	case !c.HasKey():
		state.Problem = "it has no certificate with its key; set tls.crt and tls.key"
	default:
		pair, err := tls.X509KeyPair(m.GetCertificateChain(), m.GetPrivateKey())
		if err != nil {
			// The words of the library repeat nothing of the content.
			state.Problem = "its certificate and key cannot be used: " + strings.TrimPrefix(err.Error(), "tls: ")
		} else {
			state.NotAfter = pair.Leaf.NotAfter
		}
	}
	out.Object = &object.Object{Key: k, Source: secret.Source, Location: secret.Location, Created: secret.Created, Body: state}
	return out
}

package resourcename

import "strings"

// AuthoritySuffix is the suffix of secrets that hold only the CA certificates for verifying peers.
const AuthoritySuffix = "-cacert"

const (
	credentialPrefix = "kubernetes://"
	// qualifiedPrefix is written by Gateway API controllers; the namespace always follows.
	qualifiedPrefix = "kubernetes-gateway://"
)

// Credential names the secret with the certificate and key of a credentialName: "kubernetes://shop-tls". A name with
// the scheme "kubernetes://" or "kubernetes-gateway://" is returned as it is.
func Credential(name string) string {
	if strings.HasPrefix(name, qualifiedPrefix) {
		return name
	}
	return credentialPrefix + strings.TrimPrefix(name, credentialPrefix)
}

// CredentialAuthority names the secret with the CA certificates for verifying clients: "kubernetes://shop-tls-cacert".
func CredentialAuthority(name string) string {
	return strings.TrimSuffix(Credential(name), AuthoritySuffix) + AuthoritySuffix
}

// ParseCredential returns the namespace ("" for the proxy's own) and the Secret's name of what Credential or
// CredentialAuthority returned; ok is false for other names.
func ParseCredential(name string) (namespace, ref string, ok bool) {
	ref, qualified := strings.CutPrefix(name, qualifiedPrefix)
	if !qualified {
		if ref, ok = strings.CutPrefix(name, credentialPrefix); !ok {
			return "", "", false
		}
	}
	if before, after, found := strings.Cut(ref, "/"); found {
		namespace, ref = before, after
		ok = namespace != ""
	} else {
		ok = !qualified
	}
	return namespace, ref, ok && ref != "" && !strings.Contains(ref, "/")
}

// IsCredentialAuthority reports whether CredentialAuthority returned the name.
func IsCredentialAuthority(name string) bool { return strings.HasSuffix(name, AuthoritySuffix) }

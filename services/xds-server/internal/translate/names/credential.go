package names

import "strings"

// AuthoritySuffix ends the names of secrets that hold only what peers are verified with.
const AuthoritySuffix = "-cacert"

const (
	credentialPrefix = "kubernetes://"
	// qualifiedPrefix begins what Gateway API's controllers write: the namespace follows, always.
	qualifiedPrefix = "kubernetes-gateway://"
)

// Credential names the secret with the certificate and key of a credentialName: "kubernetes://shop-tls". One that has a scheme which is
// served, "kubernetes://" or "kubernetes-gateway://", keeps it.
func Credential(name string) string {
	if strings.HasPrefix(name, qualifiedPrefix) {
		return name
	}
	return credentialPrefix + strings.TrimPrefix(name, credentialPrefix)
}

// CredentialAuthority names the secret that clients are verified with: "kubernetes://shop-tls-cacert".
func CredentialAuthority(name string) string {
	return strings.TrimSuffix(Credential(name), AuthoritySuffix) + AuthoritySuffix
}

// ParseCredential returns the namespace, "" for the proxy's own, and the name within it that either name stands for; ok is false for every
// other name.
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

// IsCredentialAuthority tells the two apart.
func IsCredentialAuthority(name string) bool { return strings.HasSuffix(name, AuthoritySuffix) }

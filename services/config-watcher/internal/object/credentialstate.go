package object

import "time"

// CredentialState is what the Gateway API's status may say of a Secret: it holds no part of its content. Package
// credential makes objects of it, of the kind "CredentialState" and group "fairlead.dev" and the Secret's namespace and
// name, for Secrets that are there. It is part of no manifest, so no user can write it.
type CredentialState struct {
	// Problem says why a gateway cannot serve TLS with the Secret's certificate and key; empty if it can.
	Problem string
	// NotAfter is when the certificate expires; zero if that is not known. A certificate that has expired is no
	// Problem.
	NotAfter time.Time
}

// KindCredentialState is the kind of objects with a CredentialState, of the group "fairlead.dev".
const KindCredentialState = "CredentialState"

// Package refusal is why the ca did not issue a certificate: a kind, which the gRPC handler maps to a status code, a reason from a closed set, which
// metrics and the audit log count by, and a sentence for the caller that says what to do.
package refusal

import (
	"errors"
	"fmt"
)

// Kind is who has to act.
type Kind int

const (
	// Invalid means that the request can never be granted, whoever sends it.
	Invalid Kind = iota + 1
	// Denied means that this caller may not have what it asks for.
	Denied
	// Overloaded means that the same request may be granted later.
	Overloaded
	// Unavailable means that the ca cannot issue anything until an operator acts.
	Unavailable
)

// Reason is one of the constants below, so that a metric can carry it as a label.
type Reason string

// The reasons, in the order in which a request meets them.
const (
	Unauthenticated     Reason = "unauthenticated"
	Overload            Reason = "overload"
	CallerLimit         Reason = "caller_limit"
	CSRMalformed        Reason = "csr_malformed"
	CSRTooLarge         Reason = "csr_too_large"
	CSRKey              Reason = "csr_key"
	CSRSignature        Reason = "csr_signature"
	CSRExtension        Reason = "csr_extension"
	CSRAuthority        Reason = "csr_authority"
	CSRNames            Reason = "csr_names"
	IdentityForm        Reason = "identity_form"
	ForeignTrustDomain  Reason = "foreign_trust_domain"
	ForeignIdentity     Reason = "foreign_identity"
	Impersonation       Reason = "impersonation"
	ValidityNegative    Reason = "validity_negative"
	RequestMetadata     Reason = "request_metadata"
	IssuerExpired       Reason = "issuer_expired"
	CallerWentAway      Reason = "caller_went_away"
	InternalSignFailure Reason = "internal"
)

// Reasons lists every reason, so that metrics exist before they count.
func Reasons() []Reason {
	return []Reason{
		Unauthenticated, Overload, CallerLimit, CSRMalformed, CSRTooLarge, CSRKey, CSRSignature, CSRExtension, CSRAuthority, CSRNames, IdentityForm,
		ForeignTrustDomain, ForeignIdentity, Impersonation, ValidityNegative, RequestMetadata, IssuerExpired, CallerWentAway, InternalSignFailure,
	}
}

// Error is a refusal.
type Error struct {
	Kind   Kind
	Reason Reason
	Detail string
}

// Error implements error.
func (e *Error) Error() string { return e.Detail }

// New makes a refusal; the format is the sentence that the caller reads.
func New(kind Kind, reason Reason, format string, args ...any) error {
	return &Error{Kind: kind, Reason: reason, Detail: fmt.Sprintf(format, args...)}
}

// From finds the refusal in err.
func From(err error) (*Error, bool) {
	var e *Error
	ok := errors.As(err, &e)
	return e, ok
}

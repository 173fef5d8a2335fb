// Package refusal is why the ca did not issue a certificate: a kind, which the gRPC handler maps to a status code, a reason from a closed set, which
// metrics and the audit log count by, and a sentence for the caller that says what to do.
package refusal

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Kind is who has to act.
type Kind int

const (
	// Invalid means that the request can never be granted, whoever sends it.
	Invalid Kind = iota + 1
	// Denied means that this caller may not have what it asks for.
	Denied
	// Unproven means that the workload of a forwarded request has not proven who it is.
	Unproven
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
	RenewalAge          Reason = "renewal_age"
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
		ForeignTrustDomain, ForeignIdentity, Impersonation, RenewalAge, ValidityNegative, RequestMetadata, IssuerExpired, CallerWentAway, InternalSignFailure,
	}
}

// The reasons for which a bundle watch is refused. They are no certificate requests, so they are not among Reasons.
const (
	// WatchLimit means that as many watches are open as may be, and that the caller's identity has its share of them.
	WatchLimit Reason = "watch_limit"
	// WatchDisplaced means that the watch made room for one of an identity that has fewer.
	WatchDisplaced Reason = "watch_displaced"
)

// domain qualifies reasons in the details of a gRPC status.
const domain = "ca.fairlead.dev"

// Detailed adds to a gRPC status the reason in a form that programs read, and when to come back unless that is 0.
func Detailed(st *status.Status, reason Reason, retryAfter time.Duration) error {
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: string(reason), Domain: domain}}
	if retryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(retryAfter)})
	}
	detailed, err := st.WithDetails(details...)
	if err != nil {
		return st.Err()
	}
	return detailed.Err()
}

// Error is a refusal.
type Error struct {
	Kind   Kind
	Reason Reason
	Detail string
}

// Error implements error.
func (e *Error) Error() string { return e.Detail }

// maxDetailBytes bounds a sentence. It often quotes the request, which may hold kilobytes, and goes into the log and
// into an HTTP/2 header.
const maxDetailBytes = 1 << 10

// New makes a refusal; the format is the sentence that the caller reads. A long one loses its middle: the end says what
// to do.
func New(kind Kind, reason Reason, format string, args ...any) error {
	detail := fmt.Sprintf(format, args...)
	if len(detail) > maxDetailBytes {
		const half = maxDetailBytes/2 - len(" ... ")
		detail = strings.ToValidUTF8(detail[:half]+" ... "+detail[len(detail)-half:], "")
	}
	return &Error{Kind: kind, Reason: reason, Detail: detail}
}

// From finds the refusal in err.
func From(err error) (*Error, bool) {
	var e *Error
	ok := errors.As(err, &e)
	return e, ok
}

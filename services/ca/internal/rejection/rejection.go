// Package rejection describes why the ca rejects a request: a kind, which the gRPC handler maps to a status code; a
// reason from a closed set, by which metrics and the audit log count; and a sentence that tells the caller what to do.
//
// Packages csr, policy and admission make rejections with New. Package issuance finds them with From; it and package
// trustbundle send the reason as a detail of the gRPC status, with WithDetails. Metrics, audit log and messages call a
// rejected request "refused".
package rejection

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

// Kind classifies rejections by who can remedy them.
type Kind int

const (
	// Invalid means that the request can never be granted, whoever sends it.
	Invalid Kind = iota + 1
	// Denied means that this caller may not have what it asks for.
	Denied
	// InvalidToken means that the token of a forwarded request does not prove the workload's identity.
	InvalidToken
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
	ForeignCluster      Reason = "foreign_cluster"
	Impersonation       Reason = "impersonation"
	RenewalAge          Reason = "renewal_age"
	AccountGone         Reason = "account_gone"
	AccountReplaced     Reason = "account_replaced"
	PodGone             Reason = "pod_gone"
	TokenClaims         Reason = "token_claims"
	Banned              Reason = "banned"
	APIUnavailable      Reason = "api_unavailable"
	ValidityNegative    Reason = "validity_negative"
	RequestMetadata     Reason = "request_metadata"
	IssuerExpired       Reason = "issuer_expired"
	CallerWentAway      Reason = "caller_went_away"
	SignerAway          Reason = "signer_away"
	SignerBusy          Reason = "signer_busy"
	SignerRefused       Reason = "signer_refused"
	SignerLied          Reason = "signer_lied"
	SignerUnsuitable    Reason = "signer_unsuitable"
	InternalSignFailure Reason = "internal"
)

// Reasons lists every reason, so that metrics exist before they count.
func Reasons() []Reason {
	return []Reason{
		Unauthenticated, Overload, CallerLimit, CSRMalformed, CSRTooLarge, CSRKey, CSRSignature, CSRExtension, CSRAuthority, CSRNames,
		IdentityForm,
		ForeignTrustDomain, ForeignIdentity, ForeignCluster, Impersonation, RenewalAge,
		AccountGone, AccountReplaced, PodGone, TokenClaims, Banned, APIUnavailable, ValidityNegative, RequestMetadata, IssuerExpired,
		CallerWentAway, SignerAway, SignerBusy, SignerRefused, SignerLied, SignerUnsuitable, InternalSignFailure,
	}
}

// The reasons for which a bundle watch is rejected. Reasons does not list them, because it lists those of certificate
// requests.
const (
	// WatchLimit means that the most watches allowed are open, and that the caller's identity has its share of them.
	WatchLimit Reason = "watch_limit"
	// WatchDisplaced means that the ca ended the watch to make room for an identity that has fewer.
	WatchDisplaced Reason = "watch_displaced"
)

// domain is ErrorInfo.domain of every reason.
const domain = "ca.fairlead.dev"

// WithDetails adds the reason (google.rpc.ErrorInfo) to a gRPC status and, unless retryAfter is 0, the delay after
// which the caller may retry (google.rpc.RetryInfo).
func WithDetails(st *status.Status, reason Reason, retryAfter time.Duration) error {
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

// Error is one rejection.
type Error struct {
	Kind   Kind
	Reason Reason
	Detail string
	// RetryAfter is when the caller should ask again; 0 if nobody knows better than package admission.
	RetryAfter time.Duration
}

// Error implements error.
func (e *Error) Error() string { return e.Detail }

// maxDetailBytes bounds Error.Detail, which often quotes the request and goes into the log and into an HTTP/2 header.
const maxDetailBytes = 1 << 10

// New makes an Error; format is the sentence for the caller. New cuts the middle out of a long sentence, since its end
// says what to do.
func New(kind Kind, reason Reason, format string, args ...any) error {
	detail := fmt.Sprintf(format, args...)
	if len(detail) > maxDetailBytes {
		const half = maxDetailBytes/2 - len(" ... ")
		detail = strings.ToValidUTF8(detail[:half]+" ... "+detail[len(detail)-half:], "")
	}
	return &Error{Kind: kind, Reason: reason, Detail: detail}
}

// From finds the Error in err.
func From(err error) (*Error, bool) {
	var e *Error
	ok := errors.As(err, &e)
	return e, ok
}

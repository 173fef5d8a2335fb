package vault

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/hashicorp/vault/api"

	"fairlead.dev/services/ca/internal/signer"
)

// maxWords is how many bytes of Vault's own words an error repeats.
const maxWords = 512

// fault says what a failed request means and what an operator can do. what names the request, such as "sign by role
// mesh". secrets are removed from Vault's words: an upstream may repeat what it was sent.
func fault(err error, what string, secrets ...string) *signer.Error {
	if known, ok := errors.AsType[*signer.Error](err); ok {
		return known
	}
	if local, ok := errors.AsType[*errLocal](err); ok {
		return signer.Errorf(signer.Away, "%s at Vault: %w", what, local)
	}
	if many, ok := errors.AsType[*errTooMany](err); ok {
		busy := signer.Errorf(signer.Busy, "%s at Vault: its quota is used up; raise the rate limit quota of the mount", what)
		busy.RetryAfter = many.retryAfter
		return busy
	}
	if answer, ok := errors.AsType[*api.ResponseError](err); ok {
		return refusal(answer, what, secrets)
	}
	return unanswered(err, what, secrets)
}

// refusal is fault for an answer with a status.
func refusal(answer *api.ResponseError, what string, secrets []string) *signer.Error {
	said, code := words(answer.Errors, secrets), answer.StatusCode
	remedy, known := remedyFor(said)
	// 412, 472 and 473 are of standby nodes that are not there yet.
	away := code >= 500 || code == http.StatusPreconditionFailed || code == 472 || code == 473
	switch {
	case code == http.StatusServiceUnavailable && strings.Contains(said, "sealed"):
		return signer.Errorf(signer.Away, "%s at Vault: it is sealed; unseal it", what)
	case away && !known:
		return signer.Errorf(signer.Away, "%s at Vault: status %d %q; look into Vault's log", what, code, said)
	case code < 400:
		return signer.Errorf(signer.Away, "%s at Vault: status %d; name Vault's active node as address, or what forwards to it", what, code)
	case !known && code == http.StatusForbidden:
		remedy = "have a policy of the login allow this path, and compare mount and namespace with Vault's"
	case !known && code == http.StatusNotFound:
		remedy = "there is no such path: compare mount, issuerRef, role, auth mount and namespace with Vault's"
	case !known:
		remedy = "change the role or the issuer in Vault"
	}
	return signer.Errorf(signer.Refused, "%s at Vault: refused (%d %q); %s", what, code, said, remedy)
}

// remedies are what to do about Vault's words, in the order in which they are looked for.
var remedies = []struct{ words, remedy string }{
	{"URI Subject Alternative Names", "set the role's allowed_uri_sans to spiffe://TRUST-DOMAIN/*"},
	{"subject alternate name", "add the name to the role's allowed_domains, with allow_bare_domains or allow_subdomains"},
	{"IP Subject Alternative Names", "set the role's allow_ip_sans=true"},
	{"unless \"require_cn\" is set to false", "set the role's require_cn=false"},
	{"common name", "set the role's use_csr_common_name=false and require_cn=false"},
	{"role requires keys of type", "set the role's key_type=any"},
	{"role requires a minimum", "set the role's key_type=any"},
	{"Either ttl or not_after", "remove not_after from the role"},
	{"beyond the expiration of the CA certificate", "renew the issuer in Vault"},
	{"notBefore before signer's notBefore", "lower the role's not_before_duration, or wait until the new issuer is older than it"},
	{"unknown role", "write the role, or correct role"},
	{"unable to find PKI issuer for reference", "correct issuerRef"},
	{"unable to resolve issuer id for reference", "correct issuerRef"},
	{"no default issuer currently configured", "give the PKI engine an issuer, or set issuerRef"},
	{"unable to find CRL for issuer", "import the issuer's key too and allow it crl-signing, or remove crl"},
	{"max path length of zero", "name an issuer that may sign intermediates, with a path length of 1 or more"},
	{"invalid role or secret ID", "write the current ids into auth.appRole.roleIDFile and auth.appRole.secretIDFile"},
	{"invalid secret id", "write a new secret id into auth.appRole.secretIDFile"},
	{"invalid role name", "correct auth.kubernetes.role"},
	{"service account name not authorized", "add the ca's service account to the auth role's bound_service_account_names"},
	{"namespace not authorized", "add the ca's namespace to the auth role's bound_service_account_namespaces"},
	{"invalid audience", "give the token of auth.kubernetes.tokenFile the audience of the auth role"},
	{"invalid certificate or no client certificate supplied", "have the cert auth method trust the certificate of auth.tls.certFile"},
	{"failed to match all constraints for this login certificate", "have the cert auth method's role allow auth.tls.certFile's certificate"},
	{"client certificate must be supplied", "have Vault's listener ask for client certificates"},
}

func remedyFor(said string) (remedy string, known bool) {
	for _, r := range remedies {
		if strings.Contains(said, r.words) {
			return r.remedy, true
		}
	}
	return "", false
}

// unanswered is fault for a request without an answer, or with one that cannot be read.
func unanswered(err error, what string, secrets []string) *signer.Error {
	var (
		syntax    *json.SyntaxError
		kind      *json.UnmarshalTypeError
		timeout   net.Error
		verify    *tls.CertificateVerificationError
		unknown   x509.UnknownAuthorityError
		noRecords tls.RecordHeaderError
	)
	switch {
	case errors.Is(err, errTooLarge):
		return signer.Errorf(signer.Lied, "%s at Vault: %w; compare address with Vault's", what, errTooLarge)
	case errors.As(err, &syntax), errors.As(err, &kind), errors.Is(err, errNoSecret):
		return signer.Errorf(signer.Lied, "%s at Vault: the answer is not one of Vault's; compare address with Vault's", what)
	case errors.Is(err, context.Canceled):
		return signer.Errorf(signer.Away, "%s at Vault: given up by the caller: %w", what, context.Canceled)
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return signer.Errorf(signer.Away, "%s at Vault: no answer in time: %w", what, context.DeadlineExceeded)
	case errors.As(err, &unknown):
		return signer.Errorf(signer.Away, "%s at Vault: its certificate does not verify: %w; have caFile name the CA of Vault's listener",
			what, unknown)
	case errors.As(err, &verify):
		return signer.Errorf(signer.Away, "%s at Vault: its certificate does not verify: %w; compare caFile and serverName with it", what, verify)
	case errors.As(err, &noRecords):
		return signer.Errorf(signer.Away, "%s at Vault: it does not speak TLS; have it listen with TLS, or correct address", what)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return signer.Errorf(signer.Away, "%s at Vault: the connection ended within the answer", what)
	}
	return signer.Errorf(signer.Away, "%s at Vault: %q", what, words([]string{err.Error()}, secrets))
}

// words are what Vault says, on one line, without secrets, and cut.
func words(said, secrets []string) string {
	text := strings.Join(strings.Fields(strings.Join(said, " ")), " ")
	for _, s := range secrets {
		if s != "" {
			text = strings.ReplaceAll(text, s, "[secret]")
		}
	}
	if len(text) > maxWords {
		text = strings.ToValidUTF8(text[:maxWords], "") + "…"
	}
	return text
}

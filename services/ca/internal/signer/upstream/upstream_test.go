package upstream

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/signertest"
)

func TestChain(t *testing.T) {
	ca := signertest.NewCA(t, "upstream")
	r, _ := signertest.Request(t)
	chain := ca.Sign(t, r.Template)
	leaf, between, root := signertest.PEM(chain[0])[0], signertest.PEM(chain[1])[0], signertest.PEM(ca.Root)[0]
	for name, tc := range map[string]struct {
		texts []string
		want  int
		says  string
	}{
		"leaf":                {texts: []string{leaf}, want: 1},
		"leaf first":          {texts: []string{leaf, between}, want: 2},
		"one text":            {texts: []string{leaf + "\n" + between}, want: 2},
		"with the root":       {texts: []string{leaf, between + root, root}, want: 2},
		"nothing":             {says: "without a certificate"},
		"an empty text":       {texts: []string{leaf, ""}, says: "an entry without a certificate"},
		"another kind":        {texts: []string{strings.ReplaceAll(leaf, "CERTIFICATE", "PRIVATE KEY")}, says: `is a "PRIVATE KEY"`},
		"half":                {texts: []string{leaf[:len(leaf)/2]}, says: "an entry without a certificate"},
		"five between":        {texts: []string{leaf, strings.Repeat(between, 5)}, says: "5 intermediate certificates"},
		"a thousand":          {texts: []string{leaf, strings.Repeat(between, 1000)}, says: "more than 21"},
		"broken DER":          {texts: []string{"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}, says: "entry 1"},
		"a request for a one": {texts: []string{PEM(r.CSR)}, says: "CERTIFICATE REQUEST"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Chain("the signer", tc.texts...)
			if tc.says == "" {
				if err != nil || len(got) != tc.want || !got[0].Equal(chain[0]) {
					t.Errorf("got %d certificates, %v", len(got), err)
				}
				return
			}
			signertest.WantError(t, err, signer.Lied, "the signer", tc.says)
		})
	}
}

func TestQuote(t *testing.T) {
	for in, want := range map[string]string{
		"two\nlines\x1b[31m": "two lines [31m", "bad \xff byte": "bad  byte", strings.Repeat("é", 400): strings.Repeat("é", 256) + "...",
		"a " + signertest.Token + " b": "a [secret] b",
	} {
		if got := Quote(in, "", signertest.Token); got != want {
			t.Errorf("Quote(%q) = %q, want %q", in, got, want)
		}
	}
}

type timeout struct{ error }

func (timeout) Timeout() bool { return true }

func TestErrors(t *testing.T) {
	s := Service{Name: "the signer at x", TLS: "compare caFile", Denied: "allow it"}
	grpcError := func(c codes.Code, text string) func() *signer.Error {
		return func() *signer.Error { return s.GRPCError(status.Error(c, text)) }
	}
	httpError := func(code int, h http.Header) func() *signer.Error {
		return func() *signer.Error { return s.HTTPError(code, h, "words") }
	}
	const tooLong = "grpc: received message larger than max (9 vs. 8)"
	for name, tc := range map[string]struct {
		err   func() *signer.Error
		fault signer.Fault
		says  string
		after time.Duration
	}{
		"no status":         {func() *signer.Error { return s.GRPCError(errors.New("odd")) }, signer.Away, "odd", 0},
		"who has left":      {grpcError(codes.Canceled, "x"), signer.Away, "canceled", 0},
		"HTTP who has left": {func() *signer.Error { return s.HTTPFailure(context.Canceled) }, signer.Away, "was ended", 0},
		"late":              {grpcError(codes.DeadlineExceeded, "late"), signer.Away, "in time", 0},
		"TLS":               {grpcError(codes.Unavailable, "x509: unknown authority"), signer.Away, "compare caFile", 0},
		"TLS, closed": {grpcError(codes.Unavailable, "write tcp 127.0.0.1:1->127.0.0.1:2: write: broken pipe"), signer.Away,
			"compare caFile", 0},
		"TLS, reset": {grpcError(codes.Unavailable, "write tcp 127.0.0.1:1->127.0.0.1:2: write: connection reset by peer"), signer.Away,
			"compare caFile", 0},
		"unauthenticated":   {grpcError(codes.Unauthenticated, "who"), signer.Refused, "who; allow it", 0},
		"precondition":      {grpcError(codes.FailedPrecondition, "sealed"), signer.Refused, "sealed", 0},
		"large":             {grpcError(codes.ResourceExhausted, tooLong), signer.Lied, "more than", 0},
		"HTTP 429":          {httpError(429, http.Header{"Retry-After": {"5"}}), signer.Busy, "words", 5 * time.Second},
		"HTTP 429 for long": {httpError(429, http.Header{"Retry-After": {"99999999999"}}), signer.Busy, "words", time.Minute},
		"HTTP 429 for ever": {httpError(429, http.Header{"Retry-After": {"-5"}}), signer.Busy, "words", 0},
		"HTTP 401":          {httpError(401, nil), signer.Refused, "allow it", 0},
		"HTTP 404":          {httpError(404, nil), signer.Refused, "404", 0},
		"HTTP 503":          {httpError(503, nil), signer.Away, "503", 0},
		"HTTP 302":          {httpError(302, nil), signer.Lied, "302", 0},
		"HTTP late":         {func() *signer.Error { return s.HTTPFailure(timeout{errors.New("slow")}) }, signer.Away, "in time", 0},
		"HTTP TLS":          {func() *signer.Error { return s.HTTPFailure(errors.New("tls: bad certificate")) }, signer.Away, "compare caFile", 0},
	} {
		err := tc.err()
		if wantsLeft := strings.Contains(name, "has left"); errors.Is(err, context.Canceled) != wantsLeft {
			t.Errorf("%s: %v is a caller that has left: %t", name, err, !wantsLeft)
		}
		if wantsLate := strings.Contains(name, "late"); errors.Is(err, context.DeadlineExceeded) != wantsLate {
			t.Errorf("%s: %v is a timeout: %t", name, err, !wantsLate)
		}
		if err.Fault != tc.fault || !strings.Contains(err.Error(), tc.says) || err.RetryAfter != tc.after {
			t.Errorf("%s: fault %d, after %s: %v", name, err.Fault, err.RetryAfter, err)
		}
	}
}

func FuzzChain(f *testing.F) {
	ca := signertest.NewCA(f, "upstream")
	r, _ := signertest.Request(f)
	f.Add(strings.Join(signertest.PEM(append(ca.Sign(f, r.Template), ca.Root)...), ""))
	f.Add(signertest.PEM(ca.Root)[0])
	trust := NewTrust(nil)
	if err := trust.Set(ca.Sign(f, r.Template)[1:], nil, nil); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if chain, err := Chain("the signer", text); err == nil {
			if len(chain) == 0 || len(chain) > 1+MaxIntermediates {
				t.Errorf("%d certificates", len(chain))
			}
			trust.Learn(chain)
		}
		if roots, err := Roots(text); err == nil {
			_ = NewTrust(nil).Set(roots, roots, nil)
		}
	})
}

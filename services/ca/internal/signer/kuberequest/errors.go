package kuberequest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"fairlead.dev/services/ca/internal/signer"
)

// maxWords bounds what an error has of another's words.
const maxWords = 512

// cut returns at most n bytes of a text, without control characters, which would break lines of logs.
func cut(text string, n int) string {
	if len(text) > n {
		text = text[:n] + "…"
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
}

// shortError is an error with bounded text.
type shortError struct{ error }

func (e shortError) Error() string { return cut(e.error.Error(), maxWords) }
func (e shortError) Unwrap() error { return e.error }

func short(err error) error { return shortError{err} }

// apiError says what the API server's answer to a verb means. rights is what the ca needs for it.
func apiError(err error, doing, rights string) *signer.Error {
	var status apierrors.APIStatus
	switch {
	case apierrors.IsForbidden(err):
		return signer.Errorf(signer.Refused, "%s: the ca may not: %w; grant its service account %s", doing, short(err), rights)
	case apierrors.IsUnauthorized(err):
		return signer.Errorf(signer.Refused, "%s: the API server does not know the ca: %w; see that its service account exists and its "+
			"token is one of this cluster", doing, short(err))
	case apierrors.IsTooManyRequests(err):
		after, _ := apierrors.SuggestsClientDelay(err)
		e := signer.Errorf(signer.Busy, "%s: the API server takes no more requests: %w; lower limits.requestsPerSecond, or give the ca a "+
			"FlowSchema", doing, short(err))
		e.RetryAfter = time.Duration(after) * time.Second
		return e
	case throttled(err):
		e := signer.Errorf(signer.Busy, "%s: too many requests for limits.requestsPerSecond", doing)
		e.RetryAfter = time.Second
		return e
	case apierrors.IsNotFound(err):
		return signer.Errorf(signer.Refused, "%s: %w; see that the namespace exists, and the custom resource definition if it is one", doing,
			short(err))
	case apierrors.IsTimeout(err), apierrors.IsServerTimeout(err), apierrors.IsConflict(err):
		return signer.Errorf(signer.Away, "%s: %w", doing, short(err))
	case errors.As(err, &status) && status.Status().Code >= http.StatusBadRequest && status.Status().Code < http.StatusInternalServerError:
		return signer.Errorf(signer.Refused, "%s: the API server refuses the object: %w", doing, short(err))
	}
	return signer.Errorf(signer.Away, "%s: the API server does not answer: %w", doing, short(err))
}

// throttled is whether the client's own limit would let the request through only after its deadline; client-go has no
// type for that.
func throttled(err error) bool {
	return err != nil && !errors.Is(err, context.Canceled) && strings.Contains(err.Error(), "client rate limiter Wait returned an error")
}

// verbs are the rights to objects of a kind, for the remedy of who lacks them.
func (k Kind) verbs(list string) string {
	where := "in the whole cluster"
	if k.Namespace != "" {
		where = "in namespace " + k.Namespace
	}
	noun := "the verb"
	if strings.Contains(list, " ") {
		noun = "the verbs"
	}
	return fmt.Sprintf("%s %s on %s %s", noun, list, k.Resource.GroupResource(), where)
}

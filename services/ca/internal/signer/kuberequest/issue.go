package kuberequest

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/ca/internal/signer"
)

// Issue implements signer.Issuer.
func (i *Issuer) Issue(ctx context.Context, r *signer.Request) ([]*x509.Certificate, error) {
	chain, err := i.issue(ctx, r)
	if err != nil {
		return nil, err // not a nil *signer.Error in an error
	}
	return chain, nil
}

func (i *Issuer) issue(ctx context.Context, r *signer.Request) ([]*x509.Certificate, *signer.Error) {
	ctx, cancel := context.WithTimeout(ctx, i.cfg.Timeout.Duration)
	defer cancel()
	namespace, _, _ := auth.WorkloadOf(r.Identity)
	t, err := i.target(r, namespace)
	if err != nil {
		return nil, err
	}
	csr, err := checkCSR(r, i.kind.Name)
	if err != nil {
		return nil, err
	}
	roots, pool, err := t.trusted()
	if err != nil {
		return nil, err
	}
	seconds, err := i.lifetime(ctx, r, t)
	if err != nil {
		return nil, err
	}
	if err := i.hub.ready(ctx); err != nil {
		return nil, err
	}
	if err := i.enter(ctx); err != nil {
		return nil, err
	}
	status, err := i.request(ctx, r, t.Signer, t.Spec(Ask{CSR: csr, RSA: isRSA(r.Template.PublicKey), Seconds: seconds}))
	if err != nil {
		return nil, err
	}
	chain, err := parseChain(status.Certificate, roots)
	if err != nil {
		return nil, err
	}
	now := i.deps.Clock.Now()
	if err := signer.Check(r, i.Capabilities(), chain, pool, now); err != nil {
		return nil, signer.Errorf(err.Fault, "%s: %w%s", t.Signer, err, hint(status, roots))
	}
	if t.learn(chain, pool, now) {
		i.announce()
	}
	return chain, nil
}

// lifetime returns the seconds to ask for. The signer counts them from when it signs, which may be as late as the
// deadline of ctx; the leaf must be valid no longer than the template, and than what signs it, all the same.
func (i *Issuer) lifetime(ctx context.Context, r *signer.Request, t *target) (int64, *signer.Error) {
	deadline, _ := ctx.Deadline()
	from := i.deps.Clock.Now().Add(time.Until(deadline))
	left := r.Template.NotAfter.Sub(from)
	if seconds := int64(left / time.Second); seconds < i.kind.MinSeconds {
		return 0, signer.Errorf(signer.Unsuitable, "the certificate would be valid for %s after the signer has had time to answer, and a %s "+
			"asks for %d s at least; ask for a longer lifetime", left.Truncate(time.Second), i.kind.Name, i.kind.MinSeconds)
	}
	if _, until := t.validity(); until.Before(r.Template.NotAfter) {
		left = until.Sub(from)
	}
	seconds := int64(left / time.Second)
	if seconds < i.kind.MinSeconds {
		return 0, signer.Errorf(signer.Refused, "the certificates of %s expire in %s; have its operator renew them", t.Signer,
			left.Truncate(time.Second))
	}
	return seconds, nil
}

// enter takes a place, for which it may have to wait. leave or drop gives it back.
func (i *Issuer) enter(ctx context.Context) *signer.Error {
	if i.queued.Add(1) > int64(cap(i.places)*(1+waitingPerPlace)) {
		i.queued.Add(-1)
		return i.full()
	}
	select {
	case i.places <- struct{}{}:
		return nil
	case <-i.ended:
		i.queued.Add(-1)
		return signer.Errorf(signer.Away, "this signer is not used any more; ask again")
	case <-ctx.Done():
		i.queued.Add(-1)
		return i.full()
	}
}

func (i *Issuer) leave() {
	<-i.places
	i.queued.Add(-1)
}

// full is the error for who gets no place.
func (i *Issuer) full() *signer.Error {
	if err := i.undeleted.Load(); err != nil {
		return err
	}
	err := signer.Errorf(signer.Busy, "limits.inFlight (%d) requests wait for the signer already", cap(i.places))
	err.RetryAfter = i.cfg.Timeout.Duration
	return err
}

// request creates an object, waits for the answer and has the object deleted. It gives the place back.
func (i *Issuer) request(ctx context.Context, r *signer.Request, signedBy string, spec map[string]any) (Status, *signer.Error) {
	name := "fairlead-" + strings.ToLower(rand.Text())
	object := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	object.SetAPIVersion(i.kind.Resource.GroupVersion().String())
	object.SetKind(i.kind.Name)
	object.SetName(name)
	object.SetNamespace(i.kind.Namespace)
	object.SetLabels(map[string]string{contract.ManagedByLabel: contract.ManagedByCA, processLabel: i.process})
	object.SetAnnotations(map[string]string{identityAnnotation: r.Identity.String()})
	w := i.hub.expect(name)
	created, err := i.objects.Create(ctx, object, metav1.CreateOptions{FieldManager: contract.ManagedByCA})
	if err != nil {
		i.hub.forget(w)
		if certain(err) {
			i.leave()
		} else {
			go i.drop(made{name: name}) // the API server may have made it
		}
		return Status{}, i.createError(ctx, err, name)
	}
	i.hub.identify(w, created.GetUID())
	defer func() {
		i.hub.forget(w)
		go i.drop(made{name: name, uid: created.GetUID()})
	}()
	if i.kind.Approve {
		if err := i.approve(ctx, created, signedBy); err != nil {
			return Status{}, err
		}
	}
	return i.wait(ctx, w, signedBy)
}

// certain is whether an error of Create means that there is no object of this process.
func certain(err error) bool {
	var status apierrors.APIStatus
	if throttled(err) {
		return true
	}
	return errors.As(err, &status) && status.Status().Code >= http.StatusBadRequest && status.Status().Code < http.StatusInternalServerError &&
		!apierrors.IsTimeout(err)
}

func (i *Issuer) createError(ctx context.Context, err error, name string) *signer.Error {
	switch {
	case apierrors.IsAlreadyExists(err):
		return signer.Errorf(signer.Away, "%s is there already, and is not the ca's; ask again", i.object(name))
	case errors.Is(ctx.Err(), context.Canceled):
		return i.abandoned(name)
	}
	return apiError(err, "create a "+i.kind.Name, i.kind.verbs("create"))
}

// wait returns the status that has the certificate.
func (i *Issuer) wait(ctx context.Context, w *waiter, signedBy string) (Status, *signer.Error) {
	var status Status
	for {
		last, gone, unsure := i.hub.look(w)
		if unsure {
			if err := i.hub.now(ctx, w); err != nil {
				return status, err
			}
			last, gone, _ = i.hub.look(w)
		}
		if last != nil {
			var err error
			if status, err = readStatus(last); err != nil {
				return status, signer.Errorf(signer.Lied, "%s has a status that cannot be read: %w", i.object(w.name), short(err))
			}
			if issued, err := i.kind.Judge(status); err != nil || issued {
				return status, err
			}
		}
		if gone {
			return status, signer.Errorf(signer.Away, "%s was deleted before %s answered; ask again, and see who deletes such objects",
				i.object(w.name), signedBy)
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
			return status, i.unanswered(ctx, w, status, signedBy)
		}
	}
}

// unanswered says what an object still lacks when nobody waits any longer.
func (i *Issuer) unanswered(ctx context.Context, w *waiter, s Status, signedBy string) *signer.Error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return i.abandoned(w.name)
	}
	within := i.cfg.Timeout.Duration
	if !s.Condition("Approved").True() {
		return signer.Errorf(signer.Away, "%s was not approved within %s; see that something approves requests for %s, or set approve: true",
			i.object(w.name), within, signedBy)
	}
	return signer.Errorf(signer.Away, "%s was approved, but %s did not sign it within %s%s; see that its controller runs and is ready",
		i.object(w.name), signedBy, within, pending(s))
}

// abandoned is the error for a caller who has gone.
func (i *Issuer) abandoned(name string) *signer.Error {
	return signer.Errorf(signer.Away, "the caller has not waited for %s: %w", i.object(name), context.Canceled)
}

func pending(s Status) string {
	if ready := s.Condition("Ready"); ready.Message != "" {
		return " (" + ready.Words() + ")"
	}
	return ""
}

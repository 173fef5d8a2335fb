package driver

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"slices"

	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/proto/fairlead/caapi"
	"fairlead.dev/services/ca/internal/rotation"
	"fairlead.dev/services/ca/internal/signer/kinds"
)

// Status is how the ca stands, as this replica knows it.
func (d *Driver) Status() caapi.Status {
	d.mu.Lock()
	doc, o := d.doc, d.last
	problems := maps.Clone(d.problems)
	d.mu.Unlock()
	out := caapi.Status{
		Replica: d.cfg.Name, Leader: d.cfg.Name, TrustDomain: d.cfg.Env.TrustDomain.Name(), Epoch: doc.Epoch, Generation: doc.Bundle.Generation,
		Step: string(doc.Step), Since: doc.Since, Began: doc.Began, Reason: doc.Reason, Paused: doc.Paused, Compromised: doc.Compromised,
		Accepted: doc.Accepted, Waits: doc.Unmet(o), Lagging: d.lagging(doc.State, o),
		Holders: d.cfg.Holders.Counts(doc.Epoch, doc.Bundle.Generation), Roots: describe(doc.Bundle.Roots),
	}
	if d.cfg.Leader != nil {
		out.Leader = d.cfg.Leader()
	}
	if d.cfg.Replicas != nil {
		out.Replicas = d.cfg.Replicas()
	}
	for _, s := range slices.Sorted(maps.Keys(problems)) {
		out.Problems = append(out.Problems, problems[s].Error())
	}
	if err := d.cfg.Holders.Problem(); err != nil {
		out.Problems = append(out.Problems, err.Error())
	}
	out.Signers = append(out.Signers, d.signer(doc.Current, "current"))
	if doc.Next != nil {
		out.Signers = append(out.Signers, d.signer(*doc.Next, "next"))
	}
	for _, s := range doc.Old {
		out.Signers = append(out.Signers, d.signer(s, "old"))
	}
	return out
}

// lagging are those that the step waits for.
func (d *Driver) lagging(s rotation.State, o rotation.Observation) caapi.Lagging {
	waits := s.Holders(o, d.now())
	out := caapi.Lagging{Total: len(waits)}
	if len(waits) == 0 {
		return out
	}
	known := map[string]caapi.Holder{}
	var all []caapi.Holder
	switch s.Step {
	case rotation.Renew:
		for _, old := range s.Old {
			all = append(all, d.cfg.Holders.Of(old.ID)...)
		}
	case rotation.Retire:
		all = d.cfg.Holders.Behind(s.Epoch, o.Generation)
	default:
		all = d.cfg.Holders.Behind(s.Epoch, s.Gated)
	}
	for _, h := range all {
		known[h.Name] = h
	}
	for _, name := range waits[:min(len(waits), caapi.MaxListed)] {
		h, ok := known[name]
		if !ok {
			h = caapi.Holder{Name: name}
		}
		out.First = append(out.First, h)
	}
	return out
}

func (d *Driver) signer(s rotation.Signer, role string) caapi.Signer {
	out := caapi.Signer{ID: s.ID, Name: s.Name, Role: role}
	if spec, err := kinds.Parse(s.Spec); err == nil {
		out.Kind = spec.Is()
	}
	out.Roots = describe(s.Roots)
	w := d.worker(s.ID)
	if w == nil {
		return out
	}
	if a, _ := w.opened.Guard.Authorities(); a != nil {
		out.NotAfter = a.NotAfter
	}
	if err := w.trouble(); err != nil {
		out.Problem = err.Error()
	}
	return out
}

// describe says what there is to say of root certificates in PEM.
func describe(list []string) (out []caapi.Root) {
	for _, text := range list {
		if certs, err := tlsconf.ParseCertificates([]byte(text)); err == nil && len(certs) == 1 {
			sum := sha256.Sum256(certs[0].Raw)
			out = append(out, caapi.Root{Subject: certs[0].Subject.String(), SHA256: hex.EncodeToString(sum[:]),
				NotAfter: certs[0].NotAfter, PEM: text})
		}
	}
	return out
}

// Problem is what somebody must mend while the ca goes on issuing; nil if nothing is.
func (d *Driver) Problem() error {
	doc := d.document()
	var errs []error
	d.mu.Lock()
	for _, subject := range slices.Sorted(maps.Keys(d.problems)) {
		errs = append(errs, d.problems[subject])
	}
	w := d.workers[doc.Current.ID]
	d.mu.Unlock()
	if w != nil {
		_, err := w.ready()
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

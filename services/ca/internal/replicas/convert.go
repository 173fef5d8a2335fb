package replicas

import (
	"errors"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/services/ca/internal/holders"
)

const (
	// maxCertificates of one message, which has below 600 KiB then.
	maxCertificates = 200
	// maxFolded of one status. The rest counts as unknown.
	maxFolded = 100
	maxText   = 512
)

func cutText(s string) string { return s[:min(len(s), maxText)] }

func toProto(certificates []holders.Certificate) []*cav1.HeldCertificate {
	var out []*cav1.HeldCertificate
	for i := range certificates {
		c := &certificates[i]
		held := &cav1.HeldCertificate{
			Fingerprint: c.Fingerprint[:], Serial: c.Serial, Identity: c.Identity, Pod: c.Pod, PodUid: c.PodUID, Signer: c.Signer,
			AuthorityKeyId: c.AuthorityKeyID, Epoch: c.Epoch, Generation: c.Generation, NotAfter: timestamppb.New(c.NotAfter),
			IssuedAt: timestamppb.New(c.At), Undelivered: c.Undelivered,
		}
		if c.Predecessor != (holders.Fingerprint{}) {
			held.Predecessor = c.Predecessor[:]
		}
		out = append(out, held)
	}
	return out
}

// fromProto leaves out what no replica sends. A certificate that is valid for longer than any can be is taken as one
// that is not, so that a wrong clock does not keep it for ever.
func (s *Set) fromProto(certificates []*cav1.HeldCertificate) []holders.Certificate {
	latest := s.latest(s.cfg.Clock.Now())
	var out []holders.Certificate
	for _, held := range certificates {
		if len(held.GetFingerprint()) != len(holders.Fingerprint{}) || held.GetIdentity() == "" {
			s.cfg.Log.Warn("another replica has sent a certificate without fingerprint or identity")
			continue
		}
		c := holders.Certificate{
			Fingerprint: holders.Fingerprint(held.GetFingerprint()), Serial: held.GetSerial(), Identity: held.GetIdentity(), Pod: held.GetPod(),
			PodUID: held.GetPodUid(), Signer: held.GetSigner(), AuthorityKeyID: held.GetAuthorityKeyId(), Epoch: held.GetEpoch(),
			Generation: held.GetGeneration(), NotAfter: earlier(held.GetNotAfter().AsTime(), latest), At: held.GetIssuedAt().AsTime(),
			Undelivered: held.GetUndelivered(),
		}
		if before := held.GetPredecessor(); len(before) == len(c.Predecessor) {
			c.Predecessor = holders.Fingerprint(before)
		}
		out = append(out, c)
	}
	return out
}

// status is that of this replica.
func (s *Set) status() *cav1.ReplicaStatus {
	own := s.cfg.Own()
	out := &cav1.ReplicaStatus{
		Name: s.cfg.Name, Run: s.run, Signer: own.Signer, RecordVersion: own.RecordVersion, Now: timestamppb.New(s.cfg.Clock.Now()),
	}
	if err := s.cfg.Registry.Problem(); err != nil {
		out.Problem = cutText(err.Error())
	}
	// Asked before Unknown: a replica that has found out that it lost its journal says both at once.
	out.Asking = s.cfg.Registry.Unasked()
	until, why := s.cfg.Registry.Unknown()
	for i, f := range s.cfg.Registry.Folded() {
		switch {
		case i < maxFolded:
			out.Folded = append(out.Folded, &cav1.FoldedCertificates{
				Identity: f.Identity, Signer: f.Signer, Count: uint64(f.Count), Until: timestamppb.New(f.Until),
			})
		case f.Until.After(until):
			until, why = f.Until, "replica "+s.cfg.Name+" has issued more certificates than can be remembered"
		}
	}
	if !until.IsZero() {
		out.UnknownUntil, out.UnknownReason = timestamppb.New(until), cutText(why)
	}
	return out
}

// memberOf reads the status of another replica.
func memberOf(status *cav1.ReplicaStatus, now time.Time) (*member, error) {
	if n := len(status.GetName()); n == 0 || n > maxText || status.GetRun() == "" || len(status.GetFolded()) > maxFolded {
		return nil, errors.New("the status of a replica has no name or run, or is too long")
	}
	of := &member{
		name: status.GetName(), run: cutText(status.GetRun()), knows: status.GetKnewCaller(), asking: status.GetAsking(),
		signer: status.GetSigner(), version: cutText(status.GetRecordVersion()),
		problem: cutText(status.GetProblem()), ahead: status.GetNow().AsTime().Sub(now),
	}
	for _, f := range status.GetFolded() {
		of.folded = append(of.folded, holders.Folded{
			Identity: f.GetIdentity(), Signer: f.GetSigner(), Count: int(min(f.GetCount(), 1<<40)), Until: f.GetUntil().AsTime(),
		})
	}
	return of, nil
}

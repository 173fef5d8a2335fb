package trustbundle

import (
	"context"
	"crypto/sha256"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/auth"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
)

const (
	// fingerprintBytes are those of a certificate's SHA-256 that stand for it.
	fingerprintBytes = 16
	// maxAgents is how many agents one message reports.
	maxAgents = 500
	// maxPodUIDBytes holds a UID of Kubernetes, which has 36 bytes.
	maxPodUIDBytes = 64
	// perAgent is how long the next message of a stream waits for each agent of the last one, so that 50,000 agents are
	// reported in a second.
	perAgent = 20 * time.Microsecond
)

// Acknowledgements is told who verifies with a generation of the bundle: the holders of certificates, given by their
// fingerprints, and Pods. It ignores those that it does not know. holders.Registry implements it.
type Acknowledgements interface {
	Acked(epoch, generation uint64, fingerprints [][fingerprintBytes]byte, podUIDs []string)
}

// report is what agents have acknowledged of one generation.
type report struct {
	point
	fingerprints [][fingerprintBytes]byte
	podUIDs      []string
}

// readReports checks the acknowledgements of agents in a message, of which the newest may be that of sent. Its errors
// are gRPC statuses.
func readReports(m *cav1.WatchBundleRequest, sent point) (reports []report, agents int, err error) {
	refuse := func(format string, args ...any) ([]report, int, error) {
		return nil, 0, status.Errorf(codes.InvalidArgument, format, args...)
	}
	if n := len(m.GetAgents()); n > maxAgents {
		return refuse("agents has %d elements; send at most %d in one message", n, maxAgents)
	}
	for i, a := range m.GetAgents() {
		r := report{point: point{a.GetEpoch(), a.GetGeneration()}, podUIDs: a.GetPodUids()}
		if r.generation == 0 || r.compare(sent) > 0 {
			return refuse("agents[%d]: generation %d of epoch %d is not one that was sent; the newest is %d of epoch %d", i, r.generation,
				r.epoch, sent.generation, sent.epoch)
		}
		if agents += len(a.GetCertificates()) + len(a.GetPodUids()); agents > maxAgents {
			return refuse("agents has more than %d certificates and pod_uids; send the others in further messages", maxAgents)
		}
		for k, c := range a.GetCertificates() {
			if len(c) != fingerprintBytes {
				return refuse("agents[%d].certificates[%d] has %d bytes; send the first %d of the SHA-256 of the certificate's DER", i, k, len(c),
					fingerprintBytes)
			}
			r.fingerprints = append(r.fingerprints, [fingerprintBytes]byte(c))
		}
		for k, uid := range a.GetPodUids() {
			if len(uid) == 0 || len(uid) > maxPodUIDBytes {
				return refuse("agents[%d].pod_uids[%d] has %d bytes; a UID has 1 to %d", i, k, len(uid), maxPodUIDBytes)
			}
		}
		reports = append(reports, r)
	}
	return reports, agents, nil
}

// caller is who has opened a watch, as Acknowledgements knows him.
type caller struct {
	fingerprints [][fingerprintBytes]byte
	podUIDs      []string
}

func callerOf(ctx context.Context) (c caller) {
	peer, ok := auth.PeerFrom(ctx)
	switch {
	case !ok:
	case peer.Token != nil && peer.Token.PodUID != "":
		c.podUIDs = []string{peer.Token.PodUID}
	case peer.Method == auth.MethodMTLS:
		if leaf := auth.ClientCertificate(ctx); leaf != nil {
			sum := sha256.Sum256(leaf.Raw)
			c.fingerprints = [][fingerprintBytes]byte{[fingerprintBytes]byte(sum[:])}
		}
	}
	return c
}

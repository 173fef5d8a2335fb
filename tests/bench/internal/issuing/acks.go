package issuing

import (
	"context"
	"crypto/sha256"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	security "istio.io/api/security/v1alpha1"

	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/proto/fairlead/contract"
)

const (
	// proxies have a certificate each and acknowledge each generation of the bundle, by way of servers.
	proxies = 10000
	servers = 3
	// generations are published while they do.
	generations = 5
	// perMessage is what the ca takes at most.
	perMessage   = 500
	residentGoal = 64 << 20
	acksWithin   = 2 * time.Minute
	ackedGoal    = 10 * time.Second
)

// acknowledge issues certificates to all proxies, and has servers report that they acknowledge one generation after the
// other. It returns the most that the ca's process held meanwhile, and the longest time from a new root to its last
// acknowledgement.
func (s *IstioAPI) acknowledge(ctx context.Context, keys *Tokens, extraRoots string) (most int64, slowest time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, acksWithin)
	defer cancel()
	prints, err := s.fingerprints(ctx, keys)
	if err != nil {
		return 0, 0, err
	}
	var group errgroup.Group
	acked := make(chan uint64, servers*(generations+2))
	for n := range servers {
		stream, err := s.watch(ctx, keys, n)
		if err != nil {
			return 0, 0, err
		}
		group.Go(func() error { return report(ctx, stream, prints[n*proxies/servers:(n+1)*proxies/servers], acked) })
	}
	for range generations {
		other, err := NewAuthority(filepath.Join(s.authority.Dir, "extra-"+time.Now().Format("150405.000000000")), ECDSA)
		if err != nil {
			return 0, 0, err
		}
		began := time.Now()
		if err := os.WriteFile(extraRoots, certPEM(other.Root), 0o600); err != nil {
			return 0, 0, err
		}
		for range servers {
			select {
			case <-ctx.Done():
				return 0, 0, errors.New("not all servers have reported a generation")
			case <-acked:
			}
		}
		slowest = max(slowest, time.Since(began))
		memory, err := s.Memory()
		if err != nil {
			return 0, 0, err
		}
		most = max(most, memory.Resident)
	}
	cancel()
	return most, slowest, group.Wait()
}

// fingerprints issues a certificate to each proxy and returns by what the ca knows them.
func (s *IstioAPI) fingerprints(ctx context.Context, keys *Tokens) ([][]byte, error) {
	out := make([][]byte, proxies)
	group, ctx := errgroup.WithContext(ctx)
	client, err := s.dial(nil)
	if err != nil {
		return nil, err
	}
	group.SetLimit(16)
	same, err := NewWorkload(0)
	if err != nil {
		return nil, err
	}
	for n := range out {
		group.Go(func() error {
			w := &Workload{Namespace: "proxies", Account: fmt.Sprintf("workload-%d", n), Key: same.Key}
			if err := w.ask(); err != nil {
				return err
			}
			token, err := keys.Of(w)
			if err != nil {
				return err
			}
			answer, err := client.CreateCertificate(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token),
				&security.IstioCertificateRequest{Csr: w.CSR}, grpc.WaitForReady(true))
			if err != nil {
				return err
			}
			block, _ := pem.Decode([]byte(answer.GetCertChain()[0]))
			sum := sha256.Sum256(block.Bytes)
			out[n] = sum[:16]
			return nil
		})
	}
	return out, group.Wait()
}

// watch opens the stream of xds-server number n.
func (s *IstioAPI) watch(ctx context.Context, keys *Tokens, n int) (cav1.TrustService_WatchBundleClient, error) {
	w, err := NewWorkload(0)
	if err != nil {
		return nil, err
	}
	w.Namespace, w.Account = contract.SystemNamespace, contract.XDSServerAccount
	if err := w.ask(); err != nil {
		return nil, err
	}
	own, err := s.certificateOf(ctx, keys, w)
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(s.address, grpc.WithTransportCredentials(credentials.NewTLS(s.tls(own))))
	if err != nil {
		return nil, err
	}
	stream, err := cav1.NewTrustServiceClient(conn).WatchBundle(ctx)
	if err != nil {
		return nil, err
	}
	return stream, stream.Send(&cav1.WatchBundleRequest{Subscriber: fmt.Sprintf("xds-server-%d", n)})
}

// report acknowledges each generation for its agents and for itself.
func report(ctx context.Context, stream cav1.TrustService_WatchBundleClient, prints [][]byte, acked chan<- uint64) error {
	for first := true; ; first = false {
		answer, err := stream.Recv()
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the driver has ended the stream
		}
		if err != nil {
			return err
		}
		for from := 0; from < len(prints); from += perMessage {
			if err := stream.Send(&cav1.WatchBundleRequest{
				AckedGeneration: answer.GetGeneration(), AckedEpoch: answer.GetEpoch(), Agents: []*cav1.AgentAcknowledgement{{
					Epoch: answer.GetEpoch(), Generation: answer.GetGeneration(), Certificates: prints[from:min(from+perMessage, len(prints))],
				}},
			}); err != nil {
				if _, why := stream.Recv(); why != nil {
					err = why // Send says only that the stream has ended
				}
				if ctx.Err() != nil {
					return nil //nolint:nilerr // the driver has ended it
				}
				return err
			}
		}
		if !first {
			acked <- answer.GetGeneration()
		}
	}
}

package balance

import (
	"context"
	"sync"
	"time"

	"fairlead.dev/pkg/rpc"
	xdsv1 "fairlead.dev/proto/fairlead/xds/v1"
)

const (
	// answerTimeout bounds the calls to the peers.
	answerTimeout = time.Second
	// maxAnswerBytes bounds one answer: an instance and three numbers.
	maxAnswerBytes = 4 << 10
)

func newPeers(cfg Config) *rpc.Peers {
	return rpc.NewPeers(rpc.PeersConfig{Peers: cfg.Peers, TLS: cfg.TLS, Insecure: cfg.Insecure, MaxRecvBytes: maxAnswerBytes,
		Resolver: cfg.Resolver, Log: cfg.Log})
}

// ask asks the replicas for their load and returns the answers that came in time, in no order.
func (b *Balancer) ask(ctx context.Context) []Load {
	conns := b.peers.Conns(ctx)
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	var mu sync.Mutex
	var answers []Load
	var wg sync.WaitGroup
	for address, conn := range conns {
		wg.Go(func() {
			m, err := xdsv1.NewReplicaServiceClient(conn).GetLoad(ctx, &xdsv1.GetLoadRequest{})
			if err != nil {
				b.cfg.Log.Debug("no load from a replica", "address", address, "error", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			answers = append(answers, Load{
				Instance: m.GetInstance(), Streams: int(m.GetStreams()), InTransit: int(m.GetInTransit()), Ready: m.GetReady(),
			})
		})
	}
	wg.Wait()
	return answers
}

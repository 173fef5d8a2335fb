package replicas

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/clock"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
)

// Exchange sends everything that the registry has, and then what changes. A status that is sent says nothing that is
// newer than the certificates before it.
func (s *Set) Exchange(req *cav1.ExchangeRequest, stream cav1.ReplicaService_ExchangeServer) error {
	if err := stream.Send(&cav1.ExchangeResponse{Status: s.statusFor(req)}); err != nil || req.GetRun() == s.run {
		return err
	}
	feed := s.cfg.Registry.Feed()
	told := s.cfg.Clock.Now()
	complete := false
	for {
		var due *cav1.ReplicaStatus
		if s.cfg.Clock.Now().Sub(told) >= statusEvery {
			due, told = s.statusFor(req), s.cfg.Clock.Now()
		}
		changed := s.cfg.Registry.Changed()
		for more := true; more; {
			certificates, all := feed.Next(maxCertificates)
			more = !all || len(certificates) == maxCertificates
			response := &cav1.ExchangeResponse{Certificates: toProto(certificates), Complete: all && !complete}
			if !more {
				response.Status = due
			}
			if len(certificates) > 0 || response.Complete || response.Status != nil {
				if err := stream.Send(response); err != nil {
					return err
				}
			}
			complete = complete || all
		}
		select {
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-s.ended:
			return status.Error(codes.Unavailable, "this replica stops")
		case <-changed:
			clock.Sleep(stream.Context(), s.cfg.Clock, batchFor)
		case <-s.cfg.Clock.After(statusEvery):
		}
	}
}

// follow takes what the replica at an address sends, until ctx ends.
func (s *Set) follow(ctx context.Context, address string, conn *grpc.ClientConn) {
	for ctx.Err() == nil {
		err := s.receive(ctx, address, conn)
		if errors.Is(err, errSelf) {
			<-ctx.Done()
		} else if ctx.Err() == nil {
			s.cfg.Log.Debug("the stream from a replica has ended", "address", address, "error", err)
		}
		s.mu.Lock()
		s.members.lost(address)
		s.mu.Unlock()
		clock.Sleep(ctx, s.cfg.Clock, retryAfter)
	}
}

// errSelf says that the replica has called itself.
var errSelf = errors.New("this replica itself")

func (s *Set) receive(ctx context.Context, address string, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := cav1.NewReplicaServiceClient(conn).Exchange(ctx, &cav1.ExchangeRequest{Replica: s.cfg.Name, Run: s.run})
	if err != nil {
		return err
	}
	for {
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		if len(response.GetCertificates()) > maxCertificates {
			return errors.New("more certificates in one message than may be")
		}
		s.cfg.Registry.Merge(s.fromProto(response.GetCertificates()))
		if response.GetStatus() != nil {
			if err := s.hear(address, response.GetStatus()); err != nil {
				return err
			}
		}
		if response.GetComplete() {
			s.mu.Lock()
			s.members.completed(address)
			s.mu.Unlock()
		}
	}
}

// hear takes a status.
func (s *Set) hear(address string, status *cav1.ReplicaStatus) error {
	now := s.cfg.Clock.Now()
	of, err := memberOf(status, now)
	if err != nil {
		return err
	}
	if until := status.GetUnknownUntil().AsTime(); status.GetUnknownUntil() != nil && status.GetRun() != s.run {
		s.cfg.Registry.Doubt(earlier(until, s.latest(now)), cutText(status.GetUnknownReason()))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case status.GetRun() == s.run:
		s.members.own[address] = true
		return errSelf
	case of.name == s.cfg.Name:
		s.members.twin = address
		return nil
	}
	s.members.hear(address, of, now)
	s.judge(now)
	return nil
}

// statusFor is the status, and whether the caller has run before.
func (s *Set) statusFor(req *cav1.ExchangeRequest) *cav1.ReplicaStatus {
	out := s.status()
	s.mu.Lock()
	defer s.mu.Unlock()
	out.KnewCaller = s.members.knew(req.GetReplica(), req.GetRun())
	return out
}

// latest is the end of the last certificate that any replica can have issued.
func (s *Set) latest(now time.Time) time.Time { return now.Add(s.cfg.LongestTTL + 2*maxSkew) }

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

package rotations

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/caapi"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/tests/internal/probe"
)

var long = flag.Bool("long", false, "swap to every kind of signer, and rotate three times; otherwise three kinds and once")

// TestTheRigSeesAnotherRoot is the control: while nothing is swapped nothing fails, over the life of all certificates,
// and a ca that is replaced by one with another root, as an operator might without Fairlead's help, breaks connections.
func TestTheRigSeesAnotherRoot(t *testing.T) {
	r := start(t)
	r.holds(t, "nothing is swapped", 0, func(*testing.T) { time.Sleep(*ttl) })
	if t.Failed() {
		t.FailNow()
	}
	ca := r.Plane().CA
	testkit.NoError(t, ca.Stop(time.Minute))
	testkit.NoError(t, os.RemoveAll(r.Path("ca")))
	testkit.NoError(t, r.Plane().StartCA(t.Context()))
	got := r.during(t, *ttl, func(*testing.T) {})
	if got.failed == 0 {
		t.Error("nothing failed with another root: the rig does not see what users do")
	}
	t.Logf("as it must be:\n%s", strings.Join(got.failures[:min(3, len(got.failures))], "\n"))
}

// TestNobodyNoticesSwapsAndRotations swaps the ca through signers of all kinds, one after the other, and rotates the
// root between.
func TestNobodyNoticesSwapsAndRotations(t *testing.T) {
	r := start(t)
	at := place{t: t, dir: r.Path(""), start: r.Hub.Start, dial: r.Hub.DialBy}
	chosen, rotations := signers, []int{0, 1, len(signers) - 1} // before a rotation comes the swap of this number
	if !*long {
		chosen, rotations = slices.Clone(signers[1:3]), []int{0}
		chosen = append(chosen, signers[4])
	}
	move := func(name string, c func() caapi.Command) {
		r.holds(t, name, 3*time.Second, func(t *testing.T) {
			before := r.roots(t)
			r.Order(t, c())
			r.wait(t, idle, one)
			if r.roots(t) == before {
				t.Error("the root is the one of before")
			}
		})
	}
	for i, s := range chosen {
		move("swap to "+s.name, func() caapi.Command { return caapi.Command{Action: caapi.Swap, File: s.file(at)} })
		if slices.Contains(rotations, i) {
			// Of a plugged-in CA or a service, the root is somebody else's to rotate.
			move("swap to a root of the ca's own", func() caapi.Command { return caapi.Command{Action: caapi.Swap, File: at.selfSigned()} })
			move("rotation of the root", func() caapi.Command { return caapi.Command{Action: caapi.Rotate} })
		}
		if t.Failed() {
			return
		}
	}
}

// steps of a rotation, and the command that ends it there.
var steps = []struct{ step, command string }{
	{"prepare", caapi.Abort}, {"trust", caapi.Abort}, {"gate", caapi.Abort}, {"issue", caapi.Rollback}, {"renew", caapi.Rollback},
}

// TestNobodyNoticesARotationThatIsGivenUp ends rotations at each step. A step that is over before the command comes is
// ended by the other one.
func TestNobodyNoticesARotationThatIsGivenUp(t *testing.T) {
	r := start(t)
	for _, s := range steps {
		r.holds(t, s.command+" at "+s.step, 3*time.Second, func(t *testing.T) {
			before := r.roots(t)
			r.Order(t, caapi.Command{Action: caapi.Rotate})
			var ended string
			testkit.Eventually(t, within(), func() error {
				status, err := r.Rotation(t.Context(), nil)
				if err != nil {
					return err
				}
				if order := slices.IndexFunc(steps, func(o struct{ step, command string }) bool { return o.step == status.Step }); order < 0 ||
					order < slices.Index(steps, s) {
					return fmt.Errorf("the step is %s", status.Step)
				}
				for _, command := range []string{s.command, caapi.Rollback} {
					if _, err = r.Rotation(t.Context(), &caapi.Command{Action: command}); err == nil {
						ended = command + " at " + status.Step
						break
					}
				}
				return err
			})
			t.Log(ended)
			r.wait(t, idle, one)
			if r.roots(t) != before {
				t.Error("the root is another one than before")
			}
		})
		if t.Failed() {
			return
		}
	}
}

// patient is the lifetime of certificates where an agent does not renew. Those of Istio's agent that watches nothing
// are shorter.
const patient = 3 * time.Minute

// TestTheGateNamesAnAgentThatIsStopped stops an agent, not its Envoy. The gate waits for it, and for nobody else; after
// `accept` the rotation goes on.
func TestTheGateNamesAnAgentThatIsStopped(t *testing.T) {
	// Its Envoy must have a certificate for as long as the gate waits.
	r := start(t, "--max-workload-ttl", patient.String())
	agent := r.members[other].agent()
	testkit.NoError(t, agent.Signal(unix.SIGSTOP))
	awake := false
	wake := func() {
		if !awake {
			awake = true
			testkit.NoError(t, agent.Signal(unix.SIGCONT))
		}
	}
	defer wake()
	var named string
	r.holds(t, "the gate waits for it", 0, func(t *testing.T) {
		r.Order(t, caapi.Command{Action: caapi.Rotate})
		r.wait(t, "gate", func(s *caapi.Status) error {
			if len(s.Lagging.First) != 1 || !strings.Contains(s.Lagging.First[0].Identity+s.Lagging.First[0].Name, other) {
				return fmt.Errorf("it waits for %v, want %s alone", s.Lagging.First, other)
			}
			named = s.Lagging.First[0].Name
			return nil
		})
		// What an alert counts.
		testkit.Eventually(t, testkit.Patience, func() error {
			n, err := probe.Metric(t.Context(), probe.Client(r.Hub.DialBy), "http://"+r.Plane().CA.Ops+"/metrics", "fairlead_ca_rotation_waits",
				map[string]string{"for": "holders"})
			if err == nil && n != 1 {
				err = fmt.Errorf("the metric of holders waited for is %v", n)
			}
			return err
		})
	})
	if t.Failed() {
		return
	}
	t.Run("accept goes on", func(t *testing.T) {
		r.Order(t, caapi.Command{Action: caapi.Accept, Holder: named})
		testkit.Eventually(t, within(), func() error {
			s, err := r.Rotation(t.Context(), nil)
			if err == nil && (s.Step == "gate" || !slices.Contains(s.Accepted, named)) {
				err = errors.New("it is at the gate still")
			}
			return err
		})
	})
	wake()
	r.wait(t, idle, one)
	r.holds(t, "the agent is back", *ttl, func(*testing.T) {})
}

// TestNobodyNoticesThatAProgramReadsItsFilesSeldom rotates the root while a program without a proxy reads its roots and
// its certificate only now and then: with the default lifetime of certificates, every quarter of an hour.
func TestNobodyNoticesThatAProgramReadsItsFilesSeldom(t *testing.T) {
	r := startWith(t, time.Minute, "--max-workload-ttl", patient.String())
	r.holds(t, "rotation", time.Minute, func(t *testing.T) {
		r.Order(t, caapi.Command{Action: caapi.Rotate})
		at := ""
		testkit.Eventually(t, within(), func() error {
			s, err := r.Rotation(t.Context(), nil)
			if err != nil {
				return err
			}
			if s.Step != at {
				at = s.Step
				t.Logf("%s: %s", time.Now().Format(time.TimeOnly), at)
			}
			// The services are not waited for, so that nobody hides how late the program is. They renew in time.
			for _, h := range s.Lagging.First {
				if strings.Contains(h.Identity, "/ns/"+contract.SystemNamespace+"/") {
					r.Order(t, caapi.Command{Action: caapi.Accept, Holder: h.Name})
				}
			}
			if s.Step != idle {
				return fmt.Errorf("the step is %s", s.Step)
			}
			return nil
		})
	})
}

// TestNobodyNoticesAnExchangeByHand moves to the files of cacerts as the guide says it for a ca that is started anew:
// first everybody gets the next root, then the ca is replaced, then the root before is taken away.
func TestNobodyNoticesAnExchangeByHand(t *testing.T) {
	extra := filepath.Join(t.TempDir(), "extra.pem")
	nobody := testkit.CertPEM(newAuthority(t, "nobody").root) // an empty file is refused
	testkit.WriteFile(t, extra, nobody)
	r := start(t, "--extra-roots-file", extra)
	at := place{t: t, dir: r.Path(""), start: r.Hub.Start, dial: r.Hub.DialBy}
	old, err := os.ReadFile(r.Path("ca/root/cert.pem"))
	testkit.NoError(t, err)
	signer := at.caCerts()
	next, err := os.ReadFile(filepath.Join(strings.TrimSuffix(signer[strings.Index(signer, "directory: ")+len("directory: "):], "}\n"),
		"root-cert.pem"))
	testkit.NoError(t, err)
	file := r.Path("signer.yaml")
	testkit.WriteFile(t, file, []byte(signer))
	r.holds(t, "everybody gets the next root", *ttl, func(t *testing.T) { testkit.WriteFile(t, extra, next) })
	r.holds(t, "the ca has the next signer", *ttl, func(t *testing.T) {
		ca := r.Plane().CA
		testkit.NoError(t, ca.Stop(time.Minute))
		testkit.WriteFile(t, extra, old)
		ca.Add("--signer-file", file)
		testkit.NoError(t, r.Plane().StartCA(t.Context()))
	})
	r.holds(t, "the root before is gone", *ttl, func(t *testing.T) { testkit.WriteFile(t, extra, nobody) })
}

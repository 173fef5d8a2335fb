package issuing

import (
	"bufio"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.dev/tests/bench/internal/machine"
	"fairlead.dev/tests/internal/process"
)

// FloorRole is the argument by which the benchmark's binary becomes the floor's process.
const FloorRole = "floor"

// Floor is the process of the floor.
type Floor struct {
	*machine.Process

	in  io.WriteCloser
	out *bufio.Reader
}

// StartFloor runs the calling program again, as the floor of an authority.
func StartFloor(a *Authority, on *unix.CPUSet) (*Floor, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	f := &Floor{}
	f.Process, err = machine.Start(process.Program{
		Name: "floor", Path: self, Args: []string{FloorRole, a.Dir}, Stderr: filepath.Join(a.Dir, "floor.log"),
		Change: func(cmd *exec.Cmd) (err error) {
			if f.in, err = cmd.StdinPipe(); err != nil {
				return err
			}
			cmd.Stdout = nil
			out, err := cmd.StdoutPipe()
			f.out = bufio.NewReader(out)
			return err
		},
	}, on)
	return f, err
}

// Measure issues that many certificates and returns the time of a processor that each took.
func (f *Floor) Measure(n int) (time.Duration, error) {
	before := f.CPU()
	if _, err := fmt.Fprintln(f.in, n); err != nil {
		return 0, err
	}
	if _, err := f.out.ReadString('\n'); err != nil {
		return 0, fmt.Errorf("the floor has ended: %w: %s", err, f.LogTail())
	}
	return (f.CPU() - before) / time.Duration(n), nil
}

// ServeFloor is the process of the floor: for each line it issues as many certificates as that says.
func ServeFloor(dir string, in io.Reader, out io.Writer) error {
	issuer, err := readCertificate(filepath.Join(dir, "ca-cert.pem"))
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(dir, "ca-key.pem"))
	if err != nil {
		return err
	}
	block, _ := pem.Decode(text)
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return err
	}
	w, err := NewWorkload(0)
	if err != nil {
		return err
	}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		n, err := strconv.Atoi(lines.Text())
		if err != nil {
			return err
		}
		for range n {
			if err := issueOne(w.CSR, w.URI(), issuer, key.(crypto.Signer)); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintln(out, n); err != nil {
			return err
		}
	}
	return nil
}

// issueOne is what an issued certificate costs at least: the request is read and its signature verified, and
// crypto/x509 signs a certificate and verifies what it has signed.
func issueOne(csr string, uri *url.URL, issuer *x509.Certificate, key crypto.Signer) error {
	block, _ := pem.Decode([]byte(csr))
	if block == nil {
		return errors.New("no request")
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return err
	}
	if err := request.CheckSignature(); err != nil {
		return err
	}
	now := time.Now()
	_, err = x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: newSerial(), URIs: []*url.URL{uri}, NotBefore: now, NotAfter: now.Add(24 * time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true,
	}, issuer, request.PublicKey, key)
	return err
}

func readCertificate(file string) (*x509.Certificate, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s has no certificate", file)
	}
	return x509.ParseCertificate(block.Bytes)
}

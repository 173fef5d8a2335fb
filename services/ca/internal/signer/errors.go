package signer

import (
	"errors"
	"fmt"
	"time"
)

// Errors of a KeyManager.
var (
	ErrNoKey     = errors.New("there is no key of this name")
	ErrKeyExists = errors.New("there is a key of this name already")
)

// Fault says who can mend an Error.
type Fault int

// The faults.
const (
	// Away means that the signer could not be asked, or did not answer in time; later it may.
	Away Fault = iota + 1
	// Busy means that the signer, or the ca's own limit for it, takes no more requests now.
	Busy
	// Refused means that the signer said no. It will again, until its operator or the ca's changes something.
	Refused
	// Lied means that the signer answered with another certificate than the ca asked for.
	Lied
	// Unsuitable means that the signer cannot do what this request needs, and the caller can ask otherwise.
	Unsuitable
)

// Error is why a signer issued nothing. Its text names what an operator can do, and never a token, PIN or key.
type Error struct {
	Fault Fault
	// RetryAfter is when the caller should ask again; 0 if nobody knows.
	RetryAfter time.Duration
	Err        error
}

// Errorf makes an Error; it formats and wraps as fmt.Errorf does.
func Errorf(fault Fault, format string, args ...any) *Error {
	return &Error{Fault: fault, Err: fmt.Errorf(format, args...)}
}

// Error implements error.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// What becomes of a daemon thread that is inside a call of ours when the interpreter shuts down.
//
// Such a thread ends where it next asks for the GIL. CPython before 3.14 ends it by pthread_exit, which unwinds its
// stack: our destructors would give up references without the GIL, after the interpreter is gone, and those that ask
// for the GIL themselves would end the process, since they may not throw. From 3.14 on the thread sleeps until the
// process is gone. So it does here, in all versions: the linker puts the function below in the place of the one that
// the unwinder asks what a C++ frame does, and the first frame of ours that it comes to is the last.
#ifdef __linux__
#include <unwind.h>

#include <chrono>
#include <thread>

extern "C" {

_Unwind_Reason_Code __real___gxx_personality_v0(int version, _Unwind_Action actions, _Unwind_Exception_Class kind,
                                                _Unwind_Exception* exception, _Unwind_Context* context);

_Unwind_Reason_Code __wrap___gxx_personality_v0(int version, _Unwind_Action actions, _Unwind_Exception_Class kind,
                                                _Unwind_Exception* exception, _Unwind_Context* context) {
  while (actions & _UA_FORCE_UNWIND) std::this_thread::sleep_for(std::chrono::hours(1));
  return __real___gxx_personality_v0(version, actions, kind, exception, context);
}
}
#endif
